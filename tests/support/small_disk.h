#pragma once

// Disks that are full, or can only be read. Each is a tmpfs over a folder, in a mount namespace of
// who is to meet it: nobody else sees it, and it goes with the last process or thread in there.

#include <cerrno>
#include <exception>
#include <functional>
#include <optional>
#include <sched.h>
#include <string>
#include <sys/mount.h>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "base/unique_fd.h"

namespace lockstep::test {

struct Disk {
  std::string folder;     // REQUIRED: there it is mounted
  std::string size = "";  // "64k"; empty: without a limit
  bool can_write = true;
};

inline std::string mount_options(const Disk& disk) {
  return fmt::format("{}{}", disk.can_write ? "rw" : "ro",
                     disk.size.empty() ? "" : ",size=" + disk.size);
}

// A program that sees the disk. Behind what it prints are a line "left:" and the files that are
// there when it has ended, a name in each line.
inline std::vector<std::string> on_disk(const Disk& disk, std::vector<std::string> argv) {
  std::vector<std::string> words{
      "unshare",
      "--mount",
      "sh",
      "-c",
      "mount -t tmpfs -o \"$0\" none \"$1\" || exit 99; folder=$1; shift; \"$@\"; code=$?; "
      "echo left:; find \"$folder\" -type f; exit $code",
      mount_options(disk),
      disk.folder};
  words.insert(words.end(), argv.begin(), argv.end());
  return words;
}

// Calls `body` on a thread that sees the disk; threads that it starts do, too.
inline void run_on_disk(const Disk& disk, const std::function<void()>& body) {
  std::exception_ptr error;
  std::thread([&] {
    try {
      const unsigned long flags = disk.can_write ? 0 : MS_RDONLY;
      const std::string size = disk.size.empty() ? "" : "size=" + disk.size;
      if (::unshare(CLONE_NEWNS) != 0 ||
          ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
          ::mount("none", disk.folder.c_str(), "tmpfs", flags, size.c_str()) != 0) {
        throw IoError("cannot mount a disk on {}: {}", disk.folder, base::errno_text(errno));
      }
      body();
    } catch (...) {
      error = std::current_exception();
    }
  }).join();
  if (error) {
    std::rethrow_exception(error);
  }
}

// Why there can be no such disk here, if there can be none.
inline std::optional<std::string> disk_refusal() {
  try {
    run_on_disk({.folder = "/tmp"}, [] {});
    return std::nullopt;
  } catch (const IoError& error) {
    return error.what();
  }
}

}  // namespace lockstep::test
