#include "sibling_program.h"

#include <cerrno>
#include <filesystem>
#include <unistd.h>

#include <lockstep/base/error.h>

#include "base/process/process.h"
#include "base/unique_fd.h"

namespace lockstep::app {
namespace {

constexpr const char* kTorchProgram = "lockstep-torch";

bool can_run(const std::string& path) {
  return ::access(path.c_str(), X_OK) == 0;
}

}  // namespace

std::string sibling_path(const std::string& name) {
  return std::filesystem::path(base::own_program()).parent_path() / name;
}

std::string find_sibling(const std::string& name) {
  const std::string path = sibling_path(name);
  if (can_run(path)) {
    return path;
  }
  if (can_run(sibling_path(kTorchProgram))) {
    throw UsageError(
        "{} is missing: only what training needs was built (`make train`); `make build` builds "
        "the rest",
        path);
  }
  throw UsageError(
      "{} is missing: this lockstep was built without libtorch; build with it by "
      "`make setup build` (cmake --preset release)",
      path);
}

int exec_sibling(const std::string& name, const std::string& command,
                 const std::vector<std::string>& arguments) {
  std::string path = find_sibling(name);
  std::string first = command;
  std::vector<std::string> rest = arguments;
  std::vector<char*> argv{path.data(), first.data()};
  for (std::string& argument : rest) {
    argv.push_back(argument.data());
  }
  argv.push_back(nullptr);
  ::execv(path.c_str(), argv.data());
  throw IoError("cannot start {}: {}", path, base::errno_text(errno));
}

}  // namespace lockstep::app
