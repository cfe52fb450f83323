#include "launch/node/sweep.h"

#include <algorithm>
#include <cstdio>
#include <dirent.h>
#include <memory>
#include <optional>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <unordered_map>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "base/env.h"
#include "base/unique_fd.h"

namespace lockstep::launch {

namespace {

constexpr unsigned kExitingFlag = 0x4;  // PF_EXITING of the kernel, in the flags of /proc/PID/stat

struct ProcEntry {
  pid_t parent = 0;
  pid_t group = 0;
  char state = '?';
  unsigned flags = 0;
  unsigned long long start_ticks = 0;
};

std::optional<ProcEntry> read_entry(pid_t pid) {
  std::string text;
  try {
    text = base::read_file(fmt::format("/proc/{}/stat", pid));
  } catch (const IoError&) {
    return std::nullopt;  // it ended while we looked
  }
  // The name, in parentheses, may hold anything; what follows the last one is fixed.
  const size_t name_end = text.rfind(')');
  ProcEntry entry;
  if (name_end == std::string::npos ||
      std::sscanf(text.c_str() + name_end + 1,
                  " %c %d %d %*d %*d %*d %u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
                  &entry.state, &entry.parent, &entry.group, &entry.flags,
                  &entry.start_ticks) != 5) {
    return std::nullopt;
  }
  return entry;
}

std::unordered_map<pid_t, ProcEntry> read_all() {
  std::unordered_map<pid_t, ProcEntry> entries;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir("/proc"), ::closedir);
  if (!folder) {
    throw IoError("cannot list /proc: {}", base::errno_text(errno));
  }
  while (const dirent* item = ::readdir(folder.get())) {
    const auto pid = base::parse_integer(item->d_name, 1, INT32_MAX);
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

std::vector<Descendant> find_descendants(const std::vector<pid_t>& spared) {
  const auto entries = read_all();
  const pid_t self = ::getpid();
  std::vector<Descendant> found;
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
      found.push_back({.pid = pid, .group = entry.group, .start_ticks = entry.start_ticks});
    }
  }
  return found;
}

std::vector<pid_t> living_descendants(const std::vector<pid_t>& spared) {
  std::vector<pid_t> pids;
  for (const Descendant& process : find_descendants(spared)) {
    pids.push_back(process.pid);
  }
  return pids;
}

void signal_descendant(const Descendant& process, int signal) {
  // The pidfd is of the process that has the pid now. If its start time is the one that was found,
  // it is the same process, and stays so.
  const base::UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, process.pid, 0)));
  const auto now = read_entry(process.pid);
  if (pidfd && now && now->start_ticks == process.start_ticks) {
    ::syscall(SYS_pidfd_send_signal, pidfd.get(), signal, nullptr, 0);
  }
}

std::vector<pid_t> kill_descendants(base::Deadline deadline, const std::vector<pid_t>& spared) {
  constexpr int kPauseMs = 2;
  for (;;) {
    while (::waitpid(-1, nullptr, WNOHANG) > 0) {
    }
    const std::vector<Descendant> left = find_descendants(spared);
    if (left.empty()) {
      return {};
    }
    if (deadline.expired()) {
      return living_descendants(spared);
    }
    for (const Descendant& process : left) {
      signal_descendant(process, SIGKILL);
    }
    ::poll(nullptr, 0,
           kPauseMs);  // they need a moment to die, and their children one to become ours
  }
}

bool is_exiting(pid_t pid) {
  const auto entry = read_entry(pid);
  return !entry || (entry->flags & kExitingFlag) != 0;
}

namespace {

// True if a set of signals in /proc/PID/status ("SigCgt") contains this one.
bool has_signal(pid_t pid, const std::string& set, int signal) {
  std::string text;
  try {
    text = base::read_file(fmt::format("/proc/{}/status", pid));
  } catch (const IoError&) {
    return false;
  }
  const std::string name = fmt::format("\n{}:", set);
  const size_t at = text.find(name);
  unsigned long long mask = 0;
  return at != std::string::npos &&
         std::sscanf(text.c_str() + at + name.size(), " %llx", &mask) == 1 &&
         (mask >> (signal - 1) & 1) != 0;
}

}  // namespace

bool catches(pid_t pid, int signal) {
  return has_signal(pid, "SigCgt", signal);
}

bool ignores(pid_t pid, int signal) {
  return has_signal(pid, "SigIgn", signal);
}

}  // namespace lockstep::launch
