#include "image/squash_mount.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <fcntl.h>
#include <filesystem>
#include <linux/capability.h>
#include <linux/loop.h>
#include <linux/magic.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <lockstep/base/error.h>

#include "base/process/fork.h"
#include "base/process/process.h"
#include "base/unique_fd.h"

namespace lockstep::image {

namespace {

constexpr int kLoopAttempts = 64;  // another process may take the free device that we were told
constexpr auto kFuseTimeout = std::chrono::seconds(30);
constexpr const char* kFusePrograms[] = {"squashfuse_ll", "squashfuse"};
constexpr int kProgramNotFound = 127;

struct LoopDevice {
  base::UniqueFd fd;
  std::string path;
};

LoopDevice attach_loop(int image_fd) {
  const base::UniqueFd control = base::open_file("/dev/loop-control", O_RDWR);
  loop_config config{};
  config.fd = static_cast<uint32_t>(image_fd);
  config.info.lo_flags = LO_FLAGS_READ_ONLY | LO_FLAGS_AUTOCLEAR;
  for (int attempt = 0; attempt < kLoopAttempts; ++attempt) {
    const int number = ::ioctl(control.get(), LOOP_CTL_GET_FREE);
    if (number < 0) {
      throw IoError("no free loop device: {}", base::errno_text(errno));
    }
    LoopDevice device{.path = fmt::format("/dev/loop{}", number)};
    device.fd = base::open_file(device.path, O_RDONLY);
    if (::ioctl(device.fd.get(), LOOP_CONFIGURE, &config) == 0) {
      return device;
    }
    if (errno != EBUSY) {
      throw IoError("set up {}: {}", device.path, base::errno_text(errno));
    }
  }
  throw IoError("no free loop device after {} attempts", kLoopAttempts);
}

// Why the kernel did not mount it; empty if it did.
std::string kernel_refusal(const SquashMount& mount) {
  if (!mount.kernel_may) {
    return "needs root";
  }
  try {
    const LoopDevice device = attach_loop(mount.image_fd);
    if (::mount(device.path.c_str(), mount.folder.c_str(), "squashfs",
                MS_RDONLY | MS_NODEV | MS_NOSUID, nullptr) != 0) {
      return base::errno_text(errno);
    }
    return "";
  } catch (const IoError& error) {
    return error.what();
  }
}

// In a user namespace where we are not root, exec would take the right to mount away.
void keep_mount_right() {
  __user_cap_header_struct header{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
  __user_cap_data_struct sets[2]{};
  if (::syscall(SYS_capget, &header, sets) == 0) {
    sets[CAP_TO_INDEX(CAP_SYS_ADMIN)].inheritable |= CAP_TO_MASK(CAP_SYS_ADMIN);
    ::syscall(SYS_capset, &header, sets);
    ::prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_SYS_ADMIN, 0, 0);
  }
}

int execute_squashfuse(const SquashMount& mount, int stderr_fd) {
  ::setsid();
  keep_mount_right();
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  ::dup2(null, STDIN_FILENO);
  ::dup2(null, STDOUT_FILENO);
  ::dup2(stderr_fd, STDERR_FILENO);
  base::close_all_except({mount.image_fd});
  ::fcntl(mount.image_fd, F_SETFD, 0);
  const std::string image = fmt::format("/proc/self/fd/{}", mount.image_fd);
  for (const char* program : kFusePrograms) {
    ::execlp(program, program, "-f", "-o", "ro,nodev,nosuid", image.c_str(), mount.folder.c_str(),
             nullptr);
  }
  return kProgramNotFound;
}

bool is_fuse(const std::string& folder) {
  struct statfs info {};
  return ::statfs(folder.c_str(), &info) == 0 && info.f_type == FUSE_SUPER_MAGIC;
}

std::string first_line(int memory_file) {
  std::array<char, 512> bytes;
  const ssize_t size = ::pread(memory_file, bytes.data(), bytes.size(), 0);
  const std::string text(bytes.data(), static_cast<size_t>(std::max<ssize_t>(size, 0)));
  return text.substr(0, text.find('\n'));
}

std::string end_of_squashfuse(pid_t pid, int messages) {
  int wait_status = 0;
  ::waitpid(pid, &wait_status, 0);
  const base::ExitStatus status = base::ExitStatus::from_wait(wait_status);
  if (status.code == kProgramNotFound) {
    return "not found; install squashfuse";
  }
  const std::string said = first_line(messages);
  return said.empty() ? status.text() : said;
}

// Why squashfuse did not; empty if it did.
std::string fuse_refusal(const SquashMount& mount) {
  // Its words are kept in memory: a pipe that nobody reads would end it at its first warning.
  const base::UniqueFd messages(::memfd_create("squashfuse", MFD_CLOEXEC));
  // The kernel wakes who polls this file when a mount is made.
  const base::UniqueFd mounts = base::open_file("/proc/self/mountinfo", O_RDONLY);
  const pid_t parent = ::getpid();
  const pid_t pid = base::fork_child([&] {
    base::die_with_parent(parent);
    return execute_squashfuse(mount, messages.get());
  });
  const base::UniqueFd pidfd = base::open_pidfd(pid);
  const base::Deadline deadline = base::Deadline::after(kFuseTimeout);
  for (;;) {
    if (is_fuse(mount.folder)) {
      return "";
    }
    std::array<pollfd, 2> events{pollfd{.fd = mounts.get(), .events = POLLPRI, .revents = 0},
                                 pollfd{.fd = pidfd.get(), .events = POLLIN, .revents = 0}};
    if (::poll(events.data(), events.size(), deadline.poll_ms()) == 0) {
      ::kill(pid, SIGKILL);
      ::waitpid(pid, nullptr, 0);
      return fmt::format("nothing was mounted within {}", base::to_text(kFuseTimeout));
    }
    if (events[1].revents != 0) {
      return end_of_squashfuse(pid, messages.get());
    }
  }
}

// squashfuse mounts anything that has a superblock.
void check_root(const SquashMount& mount) {
  std::error_code error;
  const std::filesystem::directory_iterator items(mount.folder, error);
  if (error || items == std::filesystem::directory_iterator()) {
    throw FormatError("the image {} is damaged: its root folder {}; copy or build it again",
                      mount.image, error ? "cannot be read" : "is empty");
  }
}

}  // namespace

void mount_squashfs(const SquashMount& mount) {
  const std::string kernel = kernel_refusal(mount);
  if (!kernel.empty()) {
    const std::string fuse = fuse_refusal(mount);
    if (!fuse.empty()) {
      throw IoError("cannot mount the image {}: the kernel: {}; squashfuse: {}", mount.image,
                    kernel, fuse);
    }
  }
  check_root(mount);
}

}  // namespace lockstep::image
