#include "launch/node/worker.h"

#include <cerrno>
#include <fcntl.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <fmt/format.h>

#include "base/process/fork.h"
#include "base/unique_fd.h"
#include "launch/flags/command.h"
#include "launch/node/message.h"
#include "launch/node/placement.h"

namespace lockstep::launch {

namespace {

constexpr int kCannotExecute = 126;  // as shells answer
constexpr int kNotFound = 127;

void reset_signals() {
  for (int signal = 1; signal < NSIG; ++signal) {
    ::signal(signal, SIG_DFL);  // refused for SIGKILL and SIGSTOP, which are what they should be
  }
  // glibc does not let programs change its own two, which its posix_spawn (make uses it) leaves
  // ignored.
  struct {
    void* handler;
    unsigned long flags;
    void* restorer;
    uint64_t mask;
  } kernel_default{};
  for (const int signal : {32, 33}) {
    ::syscall(SYS_rt_sigaction, signal, &kernel_default, nullptr, sizeof kernel_default.mask);
  }
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

// "LOCKSTEP_HOST_PID=5:17234": this process's pid as it sees it, and as the host does. Both,
// because a child of the worker inherits the variable and must not take it for its own.
std::string host_pid_entry(int host_proc_fd) {
  char host_pid[32] = {};
  const ssize_t size = ::readlinkat(host_proc_fd, "self", host_pid, sizeof host_pid - 1);
  return size <= 0 ? "LOCKSTEP_HOST_PID="
                   : "LOCKSTEP_HOST_PID=" + std::to_string(::getpid()) + ":" + host_pid;
}

int become_program(const WorkerStart& start) {
  // A rank that shared the launcher's terminal would be stopped (SIGTTIN) when it asks for a
  // password there. In a session without one it is told at once that there is none.
  ::setsid();
  reset_signals();
  ::setrlimit(RLIMIT_NOFILE, &start.node->file_limit);
  const int null = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  ::dup2(start.stdin_fd < 0 ? null : start.stdin_fd, STDIN_FILENO);
  if (start.stdin_fd >= 0 && ::isatty(STDIN_FILENO) != 0) {
    ::ioctl(STDIN_FILENO, TIOCSCTTY, 0);
  }
  ::dup2(start.stdout_fd, STDOUT_FILENO);
  ::dup2(start.stderr_fd, STDERR_FILENO);
  send_message(start.control_fd, {.kind = MessageKind::Started, .rank = start.worker->rank});
  if (const int error = bind_to_cpus(start.worker->cpus)) {
    send_message(start.control_fd,
                 {.kind = MessageKind::Failed,
                  .text = fmt::format("cannot bind rank {} to the processors {}: {}; --bind none "
                                      "leaves it unbound",
                                      start.worker->rank, fmt::join(start.worker->cpus, ","),
                                      base::errno_text(error))});
    return kCannotExecute;
  }

  const std::vector<std::string> command =
      fill_placeholders(start.node->command, {.rank = start.worker->rank,
                                              .local_rank = start.worker->local_rank,
                                              .world_size = start.node->world_size});
  std::vector<std::string> env = start.worker->env;
  // One inherited from a job around this one would come first, and would be read instead.
  std::erase_if(env, [](const auto& entry) { return entry.starts_with("LOCKSTEP_HOST_PID="); });
  env.push_back(host_pid_entry(start.host_proc_fd));
  const int error = base::execute(command, env);
  send_message(
      start.control_fd,
      {.kind = MessageKind::CannotStart, .rank = start.worker->rank, .status = {.code = error}});
  return error == ENOENT ? kNotFound : kCannotExecute;
}

}  // namespace

pid_t start_worker(const WorkerStart& start) {
  const pid_t guardian = ::getpid();
  // A SIGTERM that arrives before the child has its own signal handling must wait, not be ignored
  // as the guardian ignores it. Linux keeps blocked signals, whatever their handling.
  sigset_t all, before;
  ::sigfillset(&all);
  ::sigprocmask(SIG_BLOCK, &all, &before);
  const pid_t pid = base::fork_child([&] {
    base::die_with_parent(guardian);
    return become_program(start);
  });
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
  return pid;
}

}  // namespace lockstep::launch
