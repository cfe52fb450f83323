#include "image/image_root.h"

#include <fcntl.h>
#include <filesystem>
#include <sstream>
#include <sys/stat.h>

#include <lockstep/base/error.h>

#include "base/process/process.h"
#include "base/unique_fd.h"
#include "image/elf.h"
#include "image/libraries.h"
#include "image/mount_tree.h"
#include "image/tools.h"

namespace lockstep::image {

namespace {

namespace fs = std::filesystem;

constexpr const char* kMerged[] = {"bin", "sbin", "lib", "lib64"};
constexpr const char* kFolders[] = {"/etc",       "/usr/local/bin", "/var", "/data", "/checkpoints",
                                    "/workspace", "/proc",          "/sys", "/dev",  "/run"};
constexpr const char* kPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n";
constexpr const char* kEntry =
    "#!/bin/sh\n"
    "# Enroot calls this with the command to run; pyxis writes its own into rc.local.\n"
    "if [ -s /etc/rc.local ]; then\n"
    "  . /etc/rc.local\n"
    "fi\n"
    "if [ $# -eq 0 ]; then\n"
    "  set -- /bin/sh\n"
    "fi\n"
    "exec \"$@\"\n";

constexpr auto kListTimeout = std::chrono::seconds(10);

// A file that is reached by a link is copied itself; links inside a folder stay links. By cp and
// not std::filesystem, which calls a full disk an input/output error.
void copy(const std::string& source, const std::string& target) {
  // --remove-destination: cp would write through a link that stands where a file goes.
  run_tool({.argv = {"cp", "-a", "-H", "--remove-destination", source, target},
            .package = "coreutils",
            .task = fmt::format("copy {} into the image", source)});
}

}  // namespace

bool ImageRoot::has(const std::string& path) const {
  const base::UniqueFd root = base::open_file(folder_, O_PATH | O_DIRECTORY);
  return static_cast<bool>(open_in_root(root.get(), path));
}

std::string ImageRoot::place(const std::string& path) const {
  const fs::path above = path_in_root(folder_, fs::path(path).parent_path().string());
  fs::create_directories(above);
  return (above / fs::path(path).filename()).string();
}

void ImageRoot::add_folder(const std::string& path, int mode) {
  if (!has(path)) {
    const std::string folder = path_in_root(folder_, path);
    fs::create_directories(folder);
    fs::permissions(folder, static_cast<fs::perms>(mode));
  }
}

void ImageRoot::add_file(const std::string& path, const std::string& text, int mode) {
  const std::string file = place(path);
  if (fs::is_symlink(fs::symlink_status(file)) || has(path)) {
    return;  // a link to what only the running system has, /etc/resolv.conf say, stays a link
  }
  const base::UniqueFd fd = base::open_file(file, O_WRONLY | O_CREAT | O_EXCL, mode);
  base::write_all(fd.get(), text.data(), text.size());
  fs::permissions(file, static_cast<fs::perms>(mode));
}

void ImageRoot::add(const ImageAddition& addition) {
  if (fs::is_directory(addition.source)) {
    const std::string folder = path_in_root(folder_, addition.target);
    fs::create_directories(folder);
    copy(addition.source + "/.", folder);
    return;
  }
  const std::string target = place(addition.target);
  // What a link there means is the image's affair, not this host's.
  if (has(addition.target) && fs::is_directory(path_in_root(folder_, addition.target))) {
    throw UsageError(
        "--add {}:{}: the target is a folder in the image; end it with a slash to put "
        "the program into it",
        addition.source, addition.target);
  }
  fs::remove(target);
  copy(addition.source, target);
  if (libraries_) {
    add_libraries(addition.source);
  }
}

void ImageRoot::add_libraries(const std::string& program) {
  for (const std::string& library : needed_libraries(program)) {
    // From elsewhere it goes where every loader looks without being told: the program may have
    // found it by a path relative to itself, or by LD_LIBRARY_PATH.
    const std::string path =
        is_system_library(library) ? library : "/usr/lib/" + fs::path(library).filename().string();
    if (!has(path)) {
      copy(library, place(path));
    }
  }
}

void ImageRoot::add_path() {
  const std::string file = path_in_root(folder_, "/etc/environment");
  const std::string text = base::read_file(file);
  if (("\n" + text).find("\nPATH=") == std::string::npos) {
    const base::UniqueFd fd = base::open_file(file, O_WRONLY | O_TRUNC);
    const std::string with_path = kPath + text;
    base::write_all(fd.get(), with_path.data(), with_path.size());
  }
}

void ImageRoot::furnish() {
  for (const std::string name : kMerged) {
    add_folder("/usr/" + name);
    if (!has("/" + name)) {
      const std::string link = path_in_root(folder_, "/" + name);  // no other link is in its place
      fs::create_directory_symlink("usr/" + name, link);
    }
  }
  for (const char* folder : kFolders) {
    add_folder(folder);
  }
  add_folder("/root", 0700);
  add_folder("/tmp", 01777);
  add_folder("/var/tmp", 01777);
  add_file("/etc/rc", kEntry, 0755);
  add_file("/etc/passwd",
           "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/bin/false\n");
  add_file("/etc/group", "root:x:0:\nnogroup:x:65534:\n");
  add_file("/etc/environment", "");
  add_path();
  for (const char* file : {"/etc/rc.local", "/etc/fstab", "/etc/hosts", "/etc/hostname",
                           "/etc/resolv.conf", "/etc/machine-id"}) {
    add_file(file, "");
  }
}

std::string ImageRoot::add_shell() {
  if (has("/bin/sh")) {
    return "";
  }
  const std::string busybox = find_tool("busybox");
  const auto elf = busybox.empty() ? std::nullopt : read_elf(busybox);
  if (elf && elf->interpreter.empty()) {
    add({.source = busybox, .target = "/bin/busybox"});
    const base::Output list =
        base::run_process({.argv = {busybox, "--list"}}, base::Deadline::after(kListTimeout));
    std::istringstream names(list.out);
    for (std::string name; std::getline(names, name);) {
      const std::string link = place("/bin/" + name);
      const bool is_free = fs::symlink_status(link).type() == fs::file_type::not_found;
      if (is_free && !has("/sbin/" + name)) {
        fs::create_symlink("busybox", link);
      }
    }
  } else {
    for (const char* name : {"sh", "kill"}) {
      const std::string program = find_tool(name);
      if (program.empty()) {
        throw UsageError("the image has no /bin/sh and this host has no {} to put into it", name);
      }
      add({.source = program, .target = fmt::format("/bin/{}", name)});
    }
  }
  if (!has("/bin/sh")) {
    throw UsageError(
        "the image has no /bin/sh and {} has none in it; add one: --add PROGRAM:/bin/sh", busybox);
  }
  return elf && elf->interpreter.empty() ? busybox : "sh and kill";
}

}  // namespace lockstep::image
