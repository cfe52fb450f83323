#include "launch/isolation.h"

#include <cerrno>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <lockstep/base/error.h>

#include "base/unique_fd.h"
#include "launch/fork.h"

namespace lockstep {

IsolationMode parse_isolation(const std::string& text) {
  if (text == "auto") {
    return IsolationMode::Auto;
  }
  if (text == "pidns") {
    return IsolationMode::PidNamespace;
  }
  if (text == "guardian") {
    return IsolationMode::Guardian;
  }
  throw UsageError("--isolation {} is unknown: choose auto, pidns or guardian", text);
}

void unshare_pid_namespace() {
  if (::unshare(CLONE_NEWPID) != 0) {
    throw IoError("unshare(CLONE_NEWPID): {}", errno_text(errno));
  }
}

void mount_own_proc() {
  if (::unshare(CLONE_NEWNS) != 0) {
    throw IoError("unshare(CLONE_NEWNS): {}", errno_text(errno));
  }
  // Slave: later mounts of the host (an automounted home) still appear, ours never leak out.
  if (::mount("none", "/", nullptr, MS_REC | MS_SLAVE, nullptr) != 0) {
    throw IoError("make / a slave mount: {}", errno_text(errno));
  }
  if (::mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, nullptr) != 0) {
    throw IoError("mount /proc: {}", errno_text(errno));
  }
}

namespace {

int wait_code(pid_t pid) {
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0) {
    if (errno != EINTR) {
      return 1;
    }
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

// Runs `step`; what it throws goes into the pipe, and the answer is 1.
template <typename Step>
int report(int pipe, Step step) {
  try {
    step();
    return 0;
  } catch (const Error& error) {
    const std::string text = error.what();
    write_all(pipe, text.data(), text.size());
    return 1;
  }
}

}  // namespace

std::optional<std::string> pid_namespace_refusal() {
  FdPair pipe = make_pipe();
  const int out = pipe.write.get();
  // In a child, for unshare(CLONE_NEWPID) cannot be taken back.
  const pid_t child = fork_child([out] {
    return report(out, [out] {
      unshare_pid_namespace();
      const pid_t first = fork_child([out] { return report(out, mount_own_proc); });
      if (wait_code(first) != 0) {
        ::_exit(1);
      }
    });
  });
  pipe.write.reset();
  const int code = wait_code(child);
  char reason[256];
  const ssize_t n = ::read(pipe.read.get(), reason, sizeof reason);
  if (code == 0) {
    return std::nullopt;
  }
  return n > 0 ? std::string(reason, static_cast<size_t>(n)) : "the trial process was killed";
}

IsolationMode choose_isolation(IsolationMode wanted) {
  if (wanted == IsolationMode::Guardian) {
    return wanted;
  }
  const auto refusal = pid_namespace_refusal();
  if (!refusal) {
    return IsolationMode::PidNamespace;
  }
  if (wanted == IsolationMode::PidNamespace) {
    throw UsageError(
        "--isolation pidns: {}; run as root (CAP_SYS_ADMIN), or use --isolation guardian",
        *refusal);
  }
  return IsolationMode::Guardian;
}

}  // namespace lockstep
