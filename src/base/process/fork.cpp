#include "base/process/fork.h"

#include <algorithm>
#include <cerrno>
#include <climits>
#include <exception>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

#include "base/unique_fd.h"

namespace lockstep::base {

pid_t fork_child(const std::function<int()>& body) {
  const pid_t pid = ::fork();
  if (pid < 0) {
    throw IoError("cannot make a process: {}; see `ulimit -u` and the pids limit of the cgroup",
                  errno_text(errno));
  }
  if (pid > 0) {
    return pid;
  }
  log::set_sink({});  // what it writes to may be the parent's alone
  int code = 1;
  try {
    code = body();
  } catch (const std::exception& error) {
    const std::string line = fmt::format("lockstep: {}\n", error.what());
    const ssize_t ignored = ::write(STDERR_FILENO, line.data(), line.size());
    static_cast<void>(ignored);
  }
  ::_exit(code);
}

void close_all_except(std::vector<int> keep) {
  std::sort(keep.begin(), keep.end());
  unsigned next = STDERR_FILENO + 1;
  for (const int fd : keep) {
    if (fd < static_cast<int>(next)) {
      continue;
    }
    if (static_cast<unsigned>(fd) > next) {
      ::close_range(next, static_cast<unsigned>(fd) - 1, 0);
    }
    next = static_cast<unsigned>(fd) + 1;
  }
  ::close_range(next, UINT_MAX, 0);
}

void die_with_parent(pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) {
    ::_exit(1);  // it died before the kernel was asked
  }
}

void adopt_orphans() {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
}

namespace {

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> result;
  result.reserve(texts.size() + 1);
  for (const std::string& text : texts) {
    result.push_back(const_cast<char*>(text.c_str()));
  }
  result.push_back(nullptr);
  return result;
}

}  // namespace

rlimit raise_file_limit() {
  rlimit before{};
  if (::getrlimit(RLIMIT_NOFILE, &before) == 0) {
    const rlimit raised{before.rlim_max, before.rlim_max};
    ::setrlimit(RLIMIT_NOFILE, &raised);
  }
  return before;
}

int execute(const std::vector<std::string>& command, const std::vector<std::string>& environment) {
  ::execvpe(command.front().c_str(), pointers(command).data(), pointers(environment).data());
  return errno;
}

std::vector<std::string> own_environment() {
  std::vector<std::string> entries;
  for (char** entry = ::environ; *entry != nullptr; ++entry) {
    entries.emplace_back(*entry);
  }
  return entries;
}

}  // namespace lockstep::base
