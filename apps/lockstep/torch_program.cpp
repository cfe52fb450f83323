#include "torch_program.h"

#include <cerrno>
#include <filesystem>
#include <unistd.h>

#include <lockstep/base/error.h>

#include "base/process/process.h"
#include "base/unique_fd.h"

namespace lockstep::app {

std::string torch_program_path() {
  return std::filesystem::path(base::own_program()).parent_path() / "lockstep-torch";
}

std::string find_torch_program() {
  const std::string path = torch_program_path();
  if (::access(path.c_str(), X_OK) != 0) {
    throw UsageError(
        "{} is missing: this lockstep was built without libtorch; build with it by "
        "`make setup build` (cmake --preset release)",
        path);
  }
  return path;
}

int exec_torch_program(const std::string& command, const std::vector<std::string>& arguments) {
  std::string path = find_torch_program();
  std::string name = command;
  std::vector<std::string> rest = arguments;
  std::vector<char*> argv{path.data(), name.data()};
  for (std::string& argument : rest) {
    argv.push_back(argument.data());
  }
  argv.push_back(nullptr);
  ::execv(path.c_str(), argv.data());
  throw IoError("cannot start {}: {}", path, base::errno_text(errno));
}

}  // namespace lockstep::app
