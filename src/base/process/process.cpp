#include "base/process/process.h"

#include <algorithm>
#include <cerrno>
#include <climits>
#include <fcntl.h>
#include <filesystem>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string.h>

#include <lockstep/base/error.h>

#include "base/env.h"

extern char** environ;

namespace lockstep::base {
namespace {

// Everything the child needs between fork and exec, laid out before the fork: there, in a process
// that may have had threads, only async-signal-safe calls are allowed, so no allocation.
struct ExecPlan {
  std::vector<char*> argv;
  std::vector<std::string> env_texts;
  std::vector<char*> envp;
  std::vector<std::string> candidates;  // argv[0] in each folder of PATH
};

ExecPlan make_plan(const ProcessOptions& options) {
  ExecPlan plan;
  for (const auto& argument : options.argv) {
    plan.argv.push_back(const_cast<char*>(argument.c_str()));
  }
  plan.argv.push_back(nullptr);
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    if (options.env.count(text.substr(0, text.find('='))) == 0) {
      plan.env_texts.push_back(text);
    }
  }
  for (const auto& [name, value] : options.env) {
    plan.env_texts.push_back(name + "=" + value);
  }
  for (auto& text : plan.env_texts) {
    plan.envp.push_back(text.data());
  }
  plan.envp.push_back(nullptr);

  const std::string& program = options.argv.at(0);
  if (program.find('/') != std::string::npos) {
    plan.candidates.push_back(program);
    return plan;
  }
  const char* path = ::getenv("PATH");
  const std::string folders = path == nullptr ? "/usr/local/bin:/usr/bin:/bin" : path;
  for (size_t begin = 0; begin <= folders.size();) {
    const size_t end = std::min(folders.find(':', begin), folders.size());
    plan.candidates.push_back(folders.substr(begin, end - begin) + "/" + program);
    begin = end + 1;
  }
  return plan;
}

// In the child. Returns only if nothing could be executed, with the errno to report.
int become(const ProcessOptions& options, const ExecPlan& plan, pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) {
    ::_exit(128 + SIGKILL);  // the parent died before the line above
  }
  if (options.new_group) {
    ::setpgid(0, 0);
  }
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  ::signal(SIGPIPE, SIG_DFL);

  const int null = options.stdin_fd < 0 ? ::open("/dev/null", O_RDONLY) : options.stdin_fd;
  // Moved out of the way first: a source may be one of 0, 1, 2 itself.
  const int sources[3] = {::fcntl(null, F_DUPFD, 10),
                          ::fcntl(options.stdout_fd < 0 ? 1 : options.stdout_fd, F_DUPFD, 10),
                          ::fcntl(options.stderr_fd < 0 ? 2 : options.stderr_fd, F_DUPFD, 10)};
  for (int target = 0; target < 3; ++target) {
    if (sources[target] >= 0) {
      ::dup2(sources[target], target);
      ::close(sources[target]);
    }
  }
  for (const int fd : options.inherit_fds) {
    ::fcntl(fd, F_SETFD, 0);
  }
  int error = ENOENT;
  for (const auto& candidate : plan.candidates) {
    ::execve(candidate.c_str(), plan.argv.data(), plan.envp.data());
    if (errno != ENOENT && errno != ENOTDIR) {
      error = errno;
    }
  }
  return error;
}

}  // namespace

ExitStatus ExitStatus::from_wait(int status) {
  if (WIFSIGNALED(status)) {
    return {.code = 0, .signal = WTERMSIG(status)};
  }
  return {.code = WEXITSTATUS(status), .signal = 0};
}

std::string own_program() {
  std::error_code error;
  const auto path = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) {
    throw IoError("cannot read /proc/self/exe, the path of this program: {}", error.message());
  }
  return path;
}

std::string signal_name(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name == nullptr ? fmt::format("signal {}", signal) : fmt::format("SIG{}", name);
}

std::string ExitStatus::text() const {
  return signal != 0 ? fmt::format("killed by signal {} ({})", signal, signal_name(signal))
                     : fmt::format("exit code {}", code);
}

pid_t host_pid() {
  const pid_t own = ::getpid();
  const std::string pair = Env().text("LOCKSTEP_HOST_PID").value_or("");  // "own:host"
  const size_t colon = pair.find(':');
  if (colon == std::string::npos || pair.substr(0, colon) != std::to_string(own)) {
    return own;  // not in a namespace, or a child that inherited its parent's
  }
  return static_cast<pid_t>(parse_integer(pair.substr(colon + 1), 1, INT_MAX).value_or(own));
}

UniqueFd open_pidfd(pid_t pid) {
  UniqueFd fd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!fd) {
    throw IoError("cannot watch process {}: {}", pid, errno_text(errno));
  }
  return fd;
}

Process::Process(const ProcessOptions& options) {
  if (options.argv.empty()) {
    throw UsageError("process: no program to start");
  }
  const ExecPlan plan = make_plan(options);
  FdPair report = make_pipe();  // close-on-exec: EOF means that exec worked
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  if (pid_ < 0) {
    throw IoError("cannot start {}: fork: {}", options.argv[0], errno_text(errno));
  }
  if (pid_ == 0) {
    const int error = become(options, plan, parent);
    [[maybe_unused]] const ssize_t n = ::write(report.write.get(), &error, sizeof error);
    ::_exit(127);
  }
  pidfd_ = open_pidfd(pid_);
  report.write.reset();
  int error = 0;
  ssize_t n = 0;
  do {
    n = ::read(report.read.get(), &error, sizeof error);
  } while (n < 0 && errno == EINTR);
  if (n == sizeof error) {
    finish();
    throw IoError("cannot start {}: {}", options.argv[0], errno_text(error));
  }
}

Process::~Process() {
  finish();
}

Process::Process(Process&& other) noexcept {
  *this = std::move(other);
}

Process& Process::operator=(Process&& other) noexcept {
  if (this != &other) {
    finish();
    pid_ = std::exchange(other.pid_, -1);
    pidfd_ = std::move(other.pidfd_);
    status_ = std::exchange(other.status_, std::nullopt);
  }
  return *this;
}

std::optional<ExitStatus> Process::wait(Deadline deadline) {
  if (status_ || pid_ < 0) {
    return status_;
  }
  pollfd entry{pidfd_.get(), POLLIN, 0};
  for (;;) {
    const int n = ::poll(&entry, 1, deadline.poll_ms());
    if (n > 0) {
      break;
    }
    if (n == 0 && deadline.expired()) {
      return std::nullopt;
    }
  }
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0) {
    if (errno != EINTR) {
      throw IoError("cannot wait for process {}: {}", pid_, errno_text(errno));
    }
  }
  status_ = ExitStatus::from_wait(status);
  return status_;
}

void Process::kill(int signal) noexcept {
  if (pid_ > 0 && !status_) {
    ::kill(pid_, signal);
  }
}

void Process::finish() noexcept {
  if (pid_ > 0 && !status_) {
    ::kill(pid_, SIGKILL);
    while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  pid_ = -1;
}

Output run_process(ProcessOptions options, Deadline deadline) {
  FdPair out = make_pipe();
  FdPair err = make_pipe();
  options.stdout_fd = out.write.get();
  options.stderr_fd = err.write.get();
  Process process(options);
  out.write.reset();
  err.write.reset();

  Output output;
  std::string* texts[2] = {&output.out, &output.err};
  pollfd entries[2] = {{out.read.get(), POLLIN, 0}, {err.read.get(), POLLIN, 0}};
  while (entries[0].fd >= 0 || entries[1].fd >= 0) {
    const int n = ::poll(entries, 2, deadline.poll_ms());
    if (n == 0 && deadline.expired()) {
      output.timed_out = true;
      process.kill(SIGKILL);
      break;
    }
    for (int i = 0; n > 0 && i < 2; ++i) {
      if (entries[i].fd < 0 || entries[i].revents == 0) {
        continue;
      }
      char buffer[65536];
      const ssize_t got = ::read(entries[i].fd, buffer, sizeof buffer);
      if (got > 0) {
        texts[i]->append(buffer, static_cast<size_t>(got));
      } else if (got == 0 || errno != EINTR) {
        entries[i].fd = -1;
      }
    }
  }
  if (!process.wait(deadline)) {
    output.timed_out = true;
    process.kill(SIGKILL);
  }
  output.status = *process.wait(Deadline::never());
  return output;
}

}  // namespace lockstep::base
