#include "bench/allreduce/bench_mpi.h"

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <unistd.h>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "base/env.h"
#include "base/process/process.h"
#include "memory_file.h"
#include "mpi_peer.h"

namespace lockstep::app {

namespace {

namespace fs = std::filesystem;
using Names = std::vector<std::string>;

constexpr auto kPatience = std::chrono::minutes(1);
constexpr const char* kDefaultPath = "/usr/local/bin:/usr/bin:/bin";

// What the user may have set to tune an MPI. The rest of the environment is not handed on: it is
// that of a job of ours, and perhaps of a batch system, which an mpiexec would take for its own.
constexpr const char* kTuning[] = {"OMPI_MCA_", "MPIR_CVAR_", "UCX_", "I_MPI_"};
constexpr const char* kKept[] = {"PATH", "HOME", "USER", "TMPDIR", "LANG", "LD_LIBRARY_PATH"};

bool is_program(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error) && ::access(path.c_str(), X_OK) == 0;
}

std::vector<fs::path> program_folders() {
  std::vector<fs::path> folders;
  if (const auto root = base::Env().text("I_MPI_ROOT")) {
    folders.push_back(fs::path(*root) / "bin");
  }
  const std::string list = base::Env().text("PATH").value_or(kDefaultPath);
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(':', begin), list.size());
    folders.emplace_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
  return folders;
}

std::string output_of(std::vector<std::string> argv) {
  try {
    const base::Output output =
        base::run_process({.argv = std::move(argv)}, base::Deadline::after(kPatience));
    return output.out + output.err;
  } catch (const IoError& /*error*/) {
    return "";  // not a program that can be run
  }
}

// Debian has several MPIs beside each other and appends their names. The first in PATH wins.
std::optional<fs::path> find_mpiexec(const std::string& name) {
  for (const fs::path& folder : program_folders()) {
    for (const std::string& program : Names{"mpiexec." + name, "mpiexec", "mpiexec.hydra"}) {
      const fs::path path = folder / program;
      if (is_program(path) && is_version_of(name, output_of({path.string(), "--version"}))) {
        return path;
      }
    }
  }
  return std::nullopt;
}

std::string how_to_get(const std::string& name) {
  if (name == "intelmpi") {
    return "pip install impi-rt impi-devel, and set I_MPI_ROOT to the environment's folder";
  }
  return fmt::format("apt-get install {}",
                     name == "openmpi" ? "openmpi-bin libopenmpi-dev" : "mpich libmpich-dev");
}

std::string last_line(std::string text) {
  while (!text.empty() && text.back() == '\n') {
    text.pop_back();
  }
  return text.substr(text.rfind('\n') + 1);
}

// `env -i` with what the MPI needs: `defaults` give way to what the user has set, `paths` do not.
std::vector<std::string> clean_environment(const std::map<std::string, std::string>& defaults,
                                           const std::map<std::string, std::string>& paths) {
  std::map<std::string, std::string> variables;
  for (const char* name : kKept) {
    if (const auto value = base::Env().text(name)) {
      variables[name] = *value;
    }
  }
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    for (const char* prefix : kTuning) {
      if (text.starts_with(prefix)) {
        variables[text.substr(0, text.find('='))] = text.substr(text.find('=') + 1);
      }
    }
  }
  variables.insert(defaults.begin(), defaults.end());
  for (const auto& [name, value] : paths) {
    variables[name] = value;
  }
  std::vector<std::string> argv{"env", "-i"};
  for (const auto& [name, value] : variables) {
    argv.push_back(fmt::format("{}={}", name, value));
  }
  return argv;
}

}  // namespace

bool is_version_of(const std::string& name, const std::string& version) {
  const auto says = [&](const char* word) { return version.find(word) != std::string::npos; };
  if (name == "openmpi") {
    return says("Open MPI") || says("OpenRTE");
  }
  const bool is_intel = says("Intel(R) MPI");
  return name == "intelmpi" ? is_intel : says("HYDRA") && !is_intel;
}

std::vector<std::string> mpi_arguments(const std::string& name, int num_ranks, bool is_bound) {
  std::vector<std::string> argv;
  if (name == "openmpi") {
    argv = {"--allow-run-as-root",
            "--oversubscribe",
            "--mca",
            "plm",
            "isolated",
            "--mca",
            "pml",
            "ob1",
            "--mca",
            "btl",
            "self,vader"};
    argv.insert(argv.end(), {"--bind-to", is_bound ? "core:overload-allowed" : "none"});
  } else {
    argv = {"-launcher", "fork"};
    if (name == "mpich" && is_bound) {
      argv.insert(argv.end(), {"-bind-to", "core"});
    }
  }
  argv.insert(argv.end(), {"-n", std::to_string(num_ranks)});
  return argv;
}

std::map<std::string, std::string> mpi_variables(const std::string& name, bool is_bound) {
  if (name == "intelmpi") {
    std::map<std::string, std::string> variables{{"I_MPI_FABRICS", "shm"}};
    if (is_bound) {
      variables["I_MPI_PIN"] = "1";
    }
    return variables;
  }
  return {};
}

MpiPrograms::MpiPrograms(const MpiSearchOptions& options) {
  std::error_code error;
  if (!options.home.empty() && !fs::is_directory(options.home, error)) {
    throw UsageError(
        "the folder of MPIs, {} (--mpi-home or LOCKSTEP_MPI_HOME), is not there; "
        "bench/mpi_pack.py makes one",
        options.home);
  }
  for (const std::string& name : options.names) {
    find(name, options);
  }
}

MpiPrograms::~MpiPrograms() {
  std::error_code error;
  if (!folder_.empty()) {
    fs::remove_all(folder_, error);
  }
}

void MpiPrograms::find(const std::string& name, const MpiSearchOptions& options) {
  const bool is_bound = options.num_ranks <= options.num_cores;
  std::map<std::string, std::string> paths;
  const fs::path home = options.home.empty() ? fs::path() : fs::absolute(options.home);
  std::string mpiexec = (home / name / "mpiexec").string();
  std::string program = (home / name / "mpi_peer").string();
  if (home.empty() || !is_program(mpiexec) || !is_program(program)) {
    const auto found = find_mpiexec(name);
    if (!found) {
      search_.missing[name] = "no mpiexec of it is in PATH; " + how_to_get(name);
      return;
    }
    mpiexec = found->string();
    if (name == "intelmpi") {
      const fs::path root = found->parent_path().parent_path();
      paths["I_MPI_ROOT"] = root.string();
      paths["LD_LIBRARY_PATH"] = (root / "lib").string();
    }
    program = compile(name, mpiexec);
    if (program.empty()) {
      return;
    }
  }
  BenchMpi peer{.name = name, .command = clean_environment(mpi_variables(name, is_bound), paths)};
  peer.command.push_back(mpiexec);
  for (std::string& argument : mpi_arguments(name, options.num_ranks, is_bound)) {
    peer.command.push_back(std::move(argument));
  }
  peer.command.push_back(program);
  search_.found.push_back(std::move(peer));
}

// Returns the program; empty, with the reason among the missing, if it cannot be compiled.
std::string MpiPrograms::compile(const std::string& name, const std::string& mpiexec) {
  const fs::path folder = fs::path(mpiexec).parent_path();
  fs::path compiler = folder / ("mpicc." + name);
  if (!is_program(compiler)) {
    compiler = folder / "mpicc";
  }
  if (!is_program(compiler)) {
    search_.missing[name] = fmt::format("{} has no mpicc beside it; {}", mpiexec, how_to_get(name));
    return "";
  }
  if (folder_.empty()) {
    folder_ = (fs::temp_directory_path() / "lockstep-mpi-XXXXXX").string();
    if (::mkdtemp(folder_.data()) == nullptr) {
      const int error = errno;
      throw IoError("cannot make the folder {}: {}", std::exchange(folder_, ""),
                    base::errno_text(error));
    }
  }
  const MemoryFile source("mpi_peer.c", kMpiPeerSource);
  const std::string program = folder_ + "/" + name;
  base::ProcessOptions options{.argv = {compiler.string(), "-std=gnu11", "-O2", "-x", "c",
                                        source.path(), "-x", "none", "-o", program}};
  if (name == "intelmpi") {  // its scripts do not know where they lie
    options.env["I_MPI_ROOT"] = folder.parent_path().string();
  }
  const base::Output output =
      base::run_process(std::move(options), base::Deadline::after(kPatience));
  if (!output.status.ok() || !is_program(program)) {
    search_.missing[name] = fmt::format("{} cannot compile the peer ({}); {}", compiler.string(),
                                        last_line(output.err), how_to_get(name));
    return "";
  }
  return program;
}

}  // namespace lockstep::app
