#pragma once

// Child processes that are waited for.

#include <map>
#include <optional>
#include <string>
#include <sys/types.h>
#include <vector>

#include "base/deadline.h"
#include "base/unique_fd.h"

namespace lockstep::base {

// How a process ended.
struct ExitStatus {
  int code = 0;    // valid if signal == 0
  int signal = 0;  // != 0: killed by it
  bool ok() const { return code == 0 && signal == 0; }

  // As a shell reports it: the code, or 128 + signal.
  int shell_code() const { return signal != 0 ? 128 + signal : code; }

  // "exit code 7", "killed by signal 9 (SIGKILL)".
  std::string text() const;

  static ExitStatus from_wait(int status);  // of waitpid(2)
};

struct ProcessOptions {
  std::vector<std::string> argv;           // REQUIRED: argv[0] is searched in PATH
  std::map<std::string, std::string> env;  // added to (and overriding) this process's environment
  int stdin_fd = -1;                       // -1: /dev/null
  int stdout_fd = -1;                      // -1: inherited
  int stderr_fd = -1;                      // -1: inherited
  std::vector<int> inherit_fds;            // stay open in the child, at the same numbers
  bool new_group = false;                  // a process group of its own
};

// Owns a child. The destructor kills (SIGKILL) and reaps one that still runs.
// Threads: not thread-safe.
class Process {
 public:
  Process() = default;
  // Throws IoError ("cannot start ./x: No such file or directory") if the program cannot be
  // executed. The child gets SIGKILL when the thread that started it dies.
  explicit Process(const ProcessOptions& options);
  ~Process();
  Process(Process&& other) noexcept;
  Process& operator=(Process&& other) noexcept;

  pid_t pid() const { return pid_; }
  int pidfd() const { return pidfd_.get(); }  // readable once it has ended

  // How it ended, or nothing if it still runs (at the deadline).
  std::optional<ExitStatus> wait(Deadline deadline);
  std::optional<ExitStatus> poll() { return wait(Deadline::after(std::chrono::nanoseconds(0))); }

  void kill(int signal) noexcept;

 private:
  void finish() noexcept;

  pid_t pid_ = -1;
  UniqueFd pidfd_;
  std::optional<ExitStatus> status_;
};

// Runs a program to its end and returns what it wrote (both streams are read to their end).
struct Output {
  ExitStatus status;
  std::string out;
  std::string err;
  bool timed_out = false;  // it was killed at the deadline; status says so too
};
Output run_process(ProcessOptions options, Deadline deadline);

// pidfd_open(2). Throws IoError.
UniqueFd open_pidfd(pid_t pid);

// This process's pid as the host sees it. `lockstep run` may start ranks in a PID namespace, where
// getpid() is a small number that means nothing outside; it tells the other one in
// LOCKSTEP_HOST_PID.
pid_t host_pid();

// Absolute path of the running program. Throws IoError.
std::string own_program();

// "SIGKILL" for 9.
std::string signal_name(int signal);

}  // namespace lockstep::base
