#include "shm/child.h"

#include <cstdio>
#include <cstdlib>
#include <poll.h>
#include <signal.h>
#include <stdexcept>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "shm/protocol.h"

namespace lockstep::shm::test {

int exit_code_of(const std::function<int()>& body) {
  try {
    return body();
  } catch (const Stopped& stopped) {
    return stopped.why == Stopped::Why::Deadline ? kDeadlineOver : kInterrupted;
  } catch (const std::exception& error) {
    fmt::print(stderr, "child: {}\n", error.what());
  } catch (...) {
    fmt::print(stderr, "child: threw something that is no std::exception\n");
  }
  return kThrew;
}

Child::Child(const std::function<int()>& body) {
  std::fflush(nullptr);
  pid_ = ::fork();
  if (pid_ == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::_exit(exit_code_of(body));
  }
  pidfd_ = base::open_pidfd(pid_);
}

Child::Child(Child&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      pidfd_(std::move(other.pidfd_)),
      status_(other.status_) {}

Child::~Child() {
  if (pid_ > 0 && !status_) {
    kill(SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
}

void Child::kill(int signal) const {
  if (!status_) {
    ::kill(pid_, signal);
  }
}

base::ExitStatus Child::wait(base::Deadline deadline) {
  if (!status_) {
    pollfd entry{.fd = pidfd_.get(), .events = POLLIN, .revents = 0};
    if (::poll(&entry, 1, deadline.poll_ms()) != 1) {
      ADD_FAILURE() << "process " << pid_ << " hangs";
      kill(SIGKILL);
    }
    int status = 0;
    ::waitpid(pid_, &status, 0);
    status_ = base::ExitStatus::from_wait(status);
  }
  return *status_;
}

bool Child::wait_for_stop() {
  int status = 0;
  ::waitpid(pid_, &status, WUNTRACED);
  if (WIFSTOPPED(status)) {
    return true;
  }
  status_ = base::ExitStatus::from_wait(status);
  return false;
}

void require(bool holds, const char* what) {
  if (!holds) {
    throw std::runtime_error(what);
  }
}

void Gate::await() const {
  char nothing = 0;
  while (::read(pipe_.read.get(), &nothing, 1) > 0) {
  }
}

}  // namespace lockstep::shm::test
