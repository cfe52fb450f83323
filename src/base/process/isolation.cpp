#include "base/process/isolation.h"

#include <cerrno>
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "base/process/fork.h"
#include "base/unique_fd.h"

namespace lockstep::base {

IsolationMode parse_isolation(const std::string& text) {
  if (text == "auto") {
    return IsolationMode::Auto;
  }
  if (text == "pidns") {
    return IsolationMode::PidNamespace;
  }
  if (text == "userns") {
    return IsolationMode::UserNamespace;
  }
  if (text == "guardian") {
    return IsolationMode::Guardian;
  }
  throw UsageError("--isolation {} is unknown: choose auto, pidns, userns or guardian", text);
}

namespace {

void write_text(const std::string& path, const std::string& text) {
  const UniqueFd fd = open_file(path, O_WRONLY);
  write_all(fd.get(), text.data(), text.size());
}

}  // namespace

void unshare_pid_namespace(IsolationMode mode) {
  if (mode != IsolationMode::UserNamespace) {
    if (::unshare(CLONE_NEWPID) != 0) {
      throw IoError("unshare(CLONE_NEWPID): {}", errno_text(errno));
    }
    return;
  }
  const uid_t user = ::geteuid();
  const gid_t group = ::getegid();
  if (::unshare(CLONE_NEWUSER | CLONE_NEWPID) != 0) {
    throw IoError("unshare(CLONE_NEWUSER): {}", errno_text(errno));
  }
  write_text("/proc/self/setgroups", "deny");
  write_text("/proc/self/uid_map", fmt::format("{} {} 1", user, user));
  write_text("/proc/self/gid_map", fmt::format("{} {} 1", group, group));
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

std::optional<std::string> pid_namespace_refusal(IsolationMode mode) {
  FdPair pipe = make_pipe();
  const int out = pipe.write.get();
  // In a child, for unshare(CLONE_NEWPID) cannot be taken back.
  const pid_t child = fork_child([out, mode] {
    return report(out, [out, mode] {
      unshare_pid_namespace(mode);
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
  if (wanted == IsolationMode::UserNamespace) {
    if (const auto refusal = pid_namespace_refusal(wanted)) {
      throw UsageError(
          "--isolation userns: {}; see the sysctls user.max_user_namespaces, "
          "kernel.unprivileged_userns_clone and kernel.apparmor_restrict_unprivileged_userns, or "
          "use --isolation guardian",
          *refusal);
    }
    return wanted;
  }
  const auto refusal = pid_namespace_refusal();
  if (!refusal) {
    return IsolationMode::PidNamespace;
  }
  if (wanted == IsolationMode::PidNamespace) {
    throw UsageError(
        "--isolation pidns: {}; run as root (CAP_SYS_ADMIN), or use --isolation guardian or userns",
        *refusal);
  }
  // Not for root: in a user namespace he would no longer be root of anything but himself.
  const bool may_be_user = ::geteuid() != 0 && !pid_namespace_refusal(IsolationMode::UserNamespace);
  return may_be_user ? IsolationMode::UserNamespace : IsolationMode::Guardian;
}

}  // namespace lockstep::base
