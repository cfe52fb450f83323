#include "image/image.h"

#include <cerrno>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <poll.h>
#include <sstream>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include <lockstep/base/error.h>

#include "base/process/fork.h"
#include "base/process/process.h"
#include "image/elf.h"

namespace lockstep::image {

namespace {

constexpr auto kCheckTimeout = std::chrono::seconds(60);
constexpr const char* kShell = "/bin/sh";
constexpr int kCannotExecute = 126;  // as shells answer
constexpr int kNotFound = 127;

bool is_there(const std::string& path) {
  return ::access(path.c_str(), F_OK) == 0;
}

bool is_program(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode) && (info.st_mode & 0111) != 0;
}

// As execvp finds it.
std::string find_program(const std::string& image, const std::string& name) {
  if (name.find('/') != std::string::npos) {
    if (!is_there(name)) {
      throw ProgramError(
          fmt::format("the image {} has no {}; add it with lockstep image build --add, or mount it",
                      image, name),
          kNotFound);
    }
    if (!is_program(name)) {
      throw ProgramError(
          fmt::format("{} in the image {} is not an executable file; see chmod +x", name, image),
          kCannotExecute);
    }
    return name;
  }
  const std::string folders = image_search_path();
  std::istringstream list(folders);
  for (std::string folder; std::getline(list, folder, ':');) {
    folder += "/" + name;
    if (is_program(folder)) {
      return folder;
    }
  }
  throw ProgramError(
      fmt::format("the image {} has no program {} in its PATH ({})", image, name, folders),
      kNotFound);
}

void check_machine(const std::string& image, const std::string& path, const ElfInfo& elf) {
  if (elf.machine != host_machine()) {
    throw UsageError("the image {} is for another machine: its {} is for {}, this host is {}",
                     image, path, machine_name(elf.machine), machine_name(host_machine()));
  }
}

// "#!/usr/bin/env python3" -> "/usr/bin/env"; empty if it is no script.
std::string script_interpreter(const std::string& path) {
  char start[256] = {};
  const base::UniqueFd fd = base::open_file(path, O_RDONLY);
  if (::pread(fd.get(), start, sizeof start - 1, 0) < 2 || std::strncmp(start, "#!", 2) != 0) {
    return "";
  }
  std::string interpreter;
  std::istringstream(start + 2) >> interpreter;
  return interpreter;
}

// The one mistake that the kernel reports as "no such file" about a file that is there.
void check_starter(const std::string& image, const std::string& path) {
  const auto elf = read_elf(path);
  const std::string starter = elf ? elf->interpreter : script_interpreter(path);
  if (!starter.empty() && !is_there(starter)) {
    throw ProgramError(
        fmt::format(
            "{} in the image {} needs {}, which the image lacks; add it with lockstep image "
            "build --add",
            path, image, starter),
        kNotFound);
  }
}

// From inside.
ImageInfo look_around(const std::string& image, const std::string& program) {
  ImageInfo info;
  info.has_shell = is_program(kShell);
  if (!program.empty()) {
    info.program = find_program(image, program);
  }
  for (const std::string& path : {info.program, std::string(info.has_shell ? kShell : "")}) {
    const auto elf = path.empty() ? std::nullopt : read_elf(path);
    if (elf) {
      check_machine(image, path, *elf);
      info.machine = machine_name(elf->machine);
    }
  }
  if (!info.program.empty()) {
    check_starter(image, info.program);
  }
  info.gpu = look_at_gpu_needs();
  return info;
}

// What the process that looked tells its parent.
nlohmann::json inspect_inside(const ContainerOptions& options, const std::string& program) {
  const char* kind = "io";
  std::string text;
  int exit_code = 0;
  try {
    enter_image(options);
    const ImageInfo info = look_around(options.image, program);
    const GpuNeeds& gpu = info.gpu;
    return {{"machine", info.machine},        {"program", info.program},
            {"shell", info.has_shell},        {"gpu_libraries", gpu.num_libraries},
            {"gpu_version", gpu.version},     {"gpu_glibc", gpu.needed_glibc},
            {"image_glibc", gpu.image_glibc}, {"gpu_problem", gpu.problem}};
  } catch (const ProgramError& error) {
    kind = "program";
    text = error.what();
    exit_code = error.exit_code;
  } catch (const UsageError& error) {
    kind = "usage";
    text = error.what();
  } catch (const FormatError& error) {
    kind = "format";
    text = error.what();
  } catch (const std::exception& error) {
    text = error.what();
  }
  return {{"kind", kind}, {"error", text}, {"exit_code", exit_code}};
}

std::string read_answer(int fd, base::Deadline deadline) {
  std::string answer;
  for (char bytes[512];;) {
    pollfd event{.fd = fd, .events = POLLIN, .revents = 0};
    if (::poll(&event, 1, deadline.poll_ms()) == 0) {
      return "";
    }
    const ssize_t size = ::read(fd, bytes, sizeof bytes);
    if (size <= 0) {
      return answer;
    }
    answer.append(bytes, static_cast<size_t>(size));
  }
}

void throw_error(const nlohmann::json& answer) {
  const std::string text = answer.at("error");
  const std::string kind = answer.at("kind");
  if (kind == "program") {
    throw ProgramError(text, answer.at("exit_code"));
  }
  if (kind == "usage") {
    throw UsageError(text);
  }
  if (kind == "format") {
    throw FormatError(text);
  }
  throw IoError(text);
}

}  // namespace

ImageInfo check_image(const ContainerOptions& options, const std::string& program) {
  const SquashfsInfo squashfs = read_squashfs(options.image);
  base::FdPair pipe = base::make_pipe();
  const pid_t parent = ::getpid();
  const pid_t child = base::fork_child([&] {
    base::die_with_parent(parent);
    const std::string text = inspect_inside(options, program)
                                 .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    base::write_all(pipe.write.get(), text.data(), text.size());
    return 0;
  });
  pipe.write.reset();
  const std::string text = read_answer(pipe.read.get(), base::Deadline::after(kCheckTimeout));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  const auto answer = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!answer.is_object()) {
    throw IoError("cannot look into the image {}: no answer within {}", options.image,
                  base::to_text(kCheckTimeout));
  }
  if (answer.contains("error")) {
    throw_error(answer);
  }
  return {.squashfs = squashfs,
          .machine = answer.at("machine"),
          .program = answer.at("program"),
          .gpu = {.num_libraries = answer.at("gpu_libraries"),
                  .version = answer.at("gpu_version"),
                  .needed_glibc = answer.at("gpu_glibc"),
                  .image_glibc = answer.at("image_glibc"),
                  .problem = answer.at("gpu_problem")},
          .has_shell = answer.at("shell")};
}

int run_in_image(const ContainerOptions& options, const std::vector<std::string>& command) {
  const std::vector<std::string> host = base::own_environment();
  if (options.runtime != ContainerRuntime::Builtin) {
    const std::vector<std::string> runtime = container_command(options, command, host);
    throw IoError("cannot start {}: {}", runtime[0],
                  base::errno_text(base::execute(runtime, host)));
  }
  enter_image(options);
  const std::vector<std::string> environment = image_environment(host);
  const pid_t parent = ::getpid();
  const pid_t child = base::fork_child([&] {
    base::die_with_parent(parent);
    const int error = base::execute(command, environment);
    fmt::print(stderr, "lockstep image enter: cannot start {} in the image: {}\n", command[0],
               base::errno_text(error));
    return error == ENOENT ? kNotFound : kCannotExecute;
  });
  // The terminal sends these to the command too, and it decides what they mean.
  std::signal(SIGINT, SIG_IGN);
  std::signal(SIGQUIT, SIG_IGN);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return base::ExitStatus::from_wait(status).shell_code();
}

}  // namespace lockstep::image
