#pragma once

// Ranks as processes: forked from the test, which has no threads then.

#include <functional>
#include <optional>
#include <sys/types.h>

#include "base/deadline.h"
#include "base/process/process.h"
#include "base/unique_fd.h"

namespace lockstep::shm::test {

// Exit codes of a child whose body did not return.
inline constexpr int kThrew = 70;         // anything else; it says what on stderr
inline constexpr int kInterrupted = 71;   // Stopped
inline constexpr int kDeadlineOver = 72;  // Stopped

// Owns a child. The destructor kills (SIGKILL) and reaps one that still runs.
class Child {
 public:
  // The child exits with what the body returns.
  explicit Child(const std::function<int()>& body);
  ~Child();
  Child(Child&& other) noexcept;
  Child& operator=(Child&&) = delete;

  pid_t pid() const { return pid_; }
  void kill(int signal) const;
  // How it ended; fails the test, and kills it, if it has not at the deadline.
  base::ExitStatus wait(base::Deadline deadline);
  // Waits until it has stopped itself (true) or ended (false).
  bool wait_for_stop();

 private:
  pid_t pid_ = -1;
  base::UniqueFd pidfd_;
  std::optional<base::ExitStatus> status_;
};

// In a child: runs the body and turns what it throws into an exit code.
int exit_code_of(const std::function<int()>& body);

// In a child: throws if `holds` is not true.
void require(bool holds, const char* what);

// Closes when its last copy does, in whichever process: the others read the end of it.
class Gate {
 public:
  Gate() : pipe_(base::make_pipe()) {}
  void open() { pipe_.write.reset(); }
  void await() const;  // until every process that could has called open() or is gone

 private:
  base::FdPair pipe_;
};

}  // namespace lockstep::shm::test
