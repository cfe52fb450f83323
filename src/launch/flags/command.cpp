#include "launch/flags/command.h"

#include <algorithm>
#include <fcntl.h>
#include <filesystem>
#include <sstream>
#include <string_view>
#include <sys/stat.h>
#include <unistd.h>

#include <lockstep/base/error.h>

#include "base/env.h"
#include "base/unique_fd.h"
#include "launch/flags/output_options.h"

namespace lockstep::launch {

namespace {

// What torchrun does for --run-path, in a process of its own: the script sees the argv that it
// would see as a program.
constexpr const char* kRunPath =
    "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], "
    "run_name='__main__')";

void check(const ProgramOptions& options) {
  if (options.program.empty()) {
    throw UsageError("no program given; for example: lockstep run --nproc-per-node 4 ./my_program");
  }
  if (options.module && options.no_python) {
    throw UsageError("--module runs Python and --no-python does not; give one of them");
  }
  if (options.run_path && (options.module || options.no_python)) {
    throw UsageError("--run-path runs a script by its path; give it without {}",
                     options.module ? "--module" : "--no-python");
  }
}

bool is_in_path(const std::string& name) {
  std::istringstream folders(base::Env().text("PATH").value_or(""));
  for (std::string folder; std::getline(folders, folder, ':');) {
    if (::access((folder + "/" + name).c_str(), X_OK) == 0) {
      return true;
    }
  }
  return false;
}

std::string first_line(const std::string& path) {
  char start[256] = {};
  const base::UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  const ssize_t size = fd ? ::pread(fd.get(), start, sizeof start, 0) : -1;
  const std::string text(start, static_cast<size_t>(std::max<ssize_t>(size, 0)));
  return text.substr(0, text.find('\n'));
}

bool is_for_python(const ProgramOptions& options) {
  const std::string& program = options.program.front();
  if (program.ends_with(".py")) {
    return true;
  }
  struct stat info {};
  const bool is_name = program.find('/') == std::string::npos;
  if (!options.is_here || (is_name && is_in_path(program)) || ::stat(program.c_str(), &info) != 0) {
    return false;
  }
  if (S_ISDIR(info.st_mode)) {
    return true;
  }
  const std::string line = S_ISREG(info.st_mode) ? first_line(program) : "";
  const bool is_zip = line.starts_with("PK\x03\x04");
  const bool names_python = line.starts_with("#!") && line.find("python") != std::string::npos;
  const bool is_plain = !std::filesystem::path(program).has_extension();
  // What can be executed is. A data file that is named by mistake is nobody's program.
  return is_zip ||
         (S_ISREG(info.st_mode) && (info.st_mode & 0111) == 0 && (names_python || is_plain));
}

std::string fill(const std::string& text, std::string_view name, int number) {
  std::string result;
  size_t done = 0;
  for (size_t at = text.find(name); at != std::string::npos; at = text.find(name, done)) {
    const bool is_escaped = at > done && text[at - 1] == '\\';
    const bool is_shells = at > 0 && text[at - 1] == '$';
    result.append(text, done, at - done - (is_escaped ? 1 : 0));
    result += is_shells || is_escaped ? std::string(name) : std::to_string(number);
    done = at + name.size();
  }
  return result.append(text, done);
}

}  // namespace

std::vector<std::string> make_command(const ProgramOptions& options) {
  check(options);
  std::vector<std::string> command;
  if (options.run_path) {
    command = {options.python, "-u", "-c", kRunPath};
  } else if (options.module) {
    command = {options.python, "-u", "-m"};
  } else if (!options.no_python && is_for_python(options)) {
    command = {options.python, "-u"};
  }
  command.insert(command.end(), options.program.begin(), options.program.end());
  return command;
}

std::vector<std::string> fill_placeholders(std::vector<std::string> command,
                                           const RankNumbers& numbers) {
  for (size_t i = 1; i < command.size(); ++i) {
    std::string& text = command[i];
    text = replaced(std::move(text), "${local_rank}", std::to_string(numbers.local_rank));
    text = fill(text, "{rank}", numbers.rank);
    text = fill(text, "{local_rank}", numbers.local_rank);
    text = fill(text, "{world_size}", numbers.world_size);
  }
  return command;
}

}  // namespace lockstep::launch
