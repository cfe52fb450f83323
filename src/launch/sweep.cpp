#include "launch/sweep.h"

#include <algorithm>
#include <cstdio>
#include <dirent.h>
#include <memory>
#include <optional>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#include <unordered_map>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "base/env.h"
#include "base/unique_fd.h"

namespace lockstep {

namespace {

constexpr unsigned kExitingFlag = 0x4;  // PF_EXITING of the kernel, in the flags of /proc/PID/stat

struct ProcEntry {
  pid_t parent = 0;
  char state = '?';
  unsigned flags = 0;
};

std::optional<ProcEntry> read_entry(pid_t pid) {
  std::string text;
  try {
    text = read_file(fmt::format("/proc/{}/stat", pid));
  } catch (const IoError&) {
    return std::nullopt;  // it ended while we looked
  }
  // The name, in parentheses, may hold anything; what follows the last one is fixed.
  const size_t name_end = text.rfind(')');
  ProcEntry entry;
  if (name_end == std::string::npos ||
      std::sscanf(text.c_str() + name_end + 1, " %c %d %*d %*d %*d %*d %u", &entry.state,
                  &entry.parent, &entry.flags) != 3) {
    return std::nullopt;
  }
  return entry;
}

std::unordered_map<pid_t, ProcEntry> read_all() {
  std::unordered_map<pid_t, ProcEntry> entries;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir("/proc"), ::closedir);
  if (!folder) {
    throw IoError("cannot list /proc: {}", errno_text(errno));
  }
  while (const dirent* item = ::readdir(folder.get())) {
    const auto pid = parse_integer(item->d_name, 1, INT32_MAX);
    if (pid) {
      if (const auto entry = read_entry(static_cast<pid_t>(*pid))) {
        entries.emplace(static_cast<pid_t>(*pid), *entry);
      }
    }
  }
  return entries;
}

bool contains(const std::vector<pid_t>& pids, pid_t pid) {
  return std::find(pids.begin(), pids.end(), pid) != pids.end();
}

}  // namespace

std::vector<pid_t> living_descendants(const std::vector<pid_t>& spared) {
  const auto entries = read_all();
  const pid_t self = ::getpid();
  std::vector<pid_t> found;
  for (const auto& [pid, entry] : entries) {
    // Up to us or to the root; the bound breaks circles that a walk without a snapshot may show.
    pid_t ancestor = pid;
    for (size_t depth = 0; depth < entries.size() && ancestor != self; ++depth) {
      const auto above = entries.find(ancestor);
      if (above == entries.end() || contains(spared, ancestor)) {
        break;
      }
      ancestor = above->second.parent;
    }
    if (pid != self && ancestor == self && entry.state != 'Z' && entry.state != 'X') {
      found.push_back(pid);
    }
  }
  return found;
}

std::vector<pid_t> kill_descendants(Deadline deadline, const std::vector<pid_t>& spared) {
  constexpr int kPauseMs = 2;
  for (;;) {
    while (::waitpid(-1, nullptr, WNOHANG) > 0) {
    }
    const std::vector<pid_t> left = living_descendants(spared);
    if (left.empty() || deadline.expired()) {
      return left;
    }
    for (const pid_t pid : left) {
      ::kill(pid, SIGKILL);
    }
    ::poll(nullptr, 0,
           kPauseMs);  // they need a moment to die, and their children one to become ours
  }
}

bool is_exiting(pid_t pid) {
  const auto entry = read_entry(pid);
  return !entry || (entry->flags & kExitingFlag) != 0;
}

bool catches(pid_t pid, int signal) {
  std::string text;
  try {
    text = read_file(fmt::format("/proc/{}/status", pid));
  } catch (const IoError&) {
    return false;
  }
  unsigned long long mask = 0;
  const size_t at = text.find("\nSigCgt:");
  return at != std::string::npos && std::sscanf(text.c_str() + at, " SigCgt: %llx", &mask) == 1 &&
         (mask >> (signal - 1) & 1) != 0;
}

}  // namespace lockstep
