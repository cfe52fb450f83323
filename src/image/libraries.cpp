#include "image/libraries.h"

#include <algorithm>
#include <filesystem>
#include <sstream>

#include <lockstep/base/error.h>

#include "base/process/process.h"
#include "image/elf.h"

namespace lockstep::image {

namespace {

constexpr auto kLoaderTimeout = std::chrono::seconds(30);
constexpr const char* kSystemFolders[] = {"/lib/", "/lib64/", "/usr/lib/", "/usr/lib64/"};

// "\tlibz.so.1 => /lib/libz.so.1 (0x7f...)" and "\t/lib64/ld-linux-x86-64.so.2 (0x7f...)" -> path;
// the kernel's own linux-vdso has none.
std::string path_of(const std::string& line) {
  const size_t begin = line.find('/', line.find("=>") == std::string::npos ? 0 : line.find("=>"));
  return begin == std::string::npos ? "" : line.substr(begin, line.rfind(" (") - begin);
}

// Where a program that is not told otherwise finds its loader.
bool is_system_loader(const std::string& path) {
  const auto normal = std::filesystem::path(path).lexically_normal();
  return is_system_library(normal.string()) && normal.filename().string().starts_with("ld");
}

}  // namespace

bool is_system_library(const std::string& path) {
  return std::any_of(std::begin(kSystemFolders), std::end(kSystemFolders),
                     [&](const char* folder) { return path.starts_with(folder); });
}

std::vector<std::string> needed_libraries(const std::string& program) {
  const auto elf = read_elf(program);
  if (!elf) {
    return {};
  }
  if (elf->machine != host_machine()) {
    throw UsageError("{} is for {}, this host is {}; use --no-libs", program,
                     machine_name(elf->machine), machine_name(host_machine()));
  }
  if (elf->interpreter.empty()) {
    return {};
  }
  // The program's own word decides what is executed next: only a loader of the system may be.
  const std::string loader = elf->interpreter;
  if (!is_system_loader(loader)) {
    throw UsageError("{} names {} as its loader, which is none of this system's; use --no-libs",
                     program, loader);
  }
  const base::Output output =
      base::run_process({.argv = {loader, "--list", program}, .env = {{"LD_PRELOAD", ""}}},
                        base::Deadline::after(kLoaderTimeout));
  if (!output.status.ok()) {
    throw UsageError(
        "cannot find the libraries of {} ({}); name their folder in LD_LIBRARY_PATH, or use "
        "--no-libs",
        program, output.err.substr(0, output.err.find('\n')));
  }
  std::vector<std::string> libraries{loader};
  std::istringstream lines(output.out);
  for (std::string line; std::getline(lines, line);) {
    const std::string path = path_of(line);
    if (!path.empty() && path != loader) {
      libraries.push_back(path);
    }
  }
  return libraries;
}

}  // namespace lockstep::image
