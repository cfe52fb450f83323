#include "launch/node/terminal.h"

#include <cerrno>
#include <cstdlib>
#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <lockstep/base/error.h>

namespace lockstep::launch {

namespace {

constexpr size_t kMaxPending = 64 * 1024;

}  // namespace

base::FdPair make_terminal(int like_fd) {
  base::UniqueFd own(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
  char name[128];
  if (!own || ::grantpt(own.get()) != 0 || ::unlockpt(own.get()) != 0 ||
      ::ptsname_r(own.get(), name, sizeof name) != 0) {
    throw IoError("cannot make a terminal for --stdin: {}; is /dev/pts mounted?",
                  base::errno_text(errno));
  }
  base::UniqueFd programs = base::open_file(name, O_RDWR | O_NOCTTY);
  termios mode{};
  if (::tcgetattr(programs.get(), &mode) == 0) {
    mode.c_oflag &= ~static_cast<tcflag_t>(OPOST);
    ::tcsetattr(programs.get(), TCSANOW, &mode);
  }
  copy_window_size(like_fd, own.get());
  return {std::move(own), std::move(programs)};
}

void copy_window_size(int like_fd, int terminal_fd) {
  winsize size{};
  if (::ioctl(like_fd, TIOCGWINSZ, &size) == 0) {
    ::ioctl(terminal_fd, TIOCSWINSZ, &size);
  }
}

LentTerminal::LentTerminal(int fd) : fd_(fd) {
  termios mode{};
  if (::tcgetattr(fd, &mode) == 0) {
    found_ = mode;
  }
}

bool LentTerminal::is_ours() const {
  return found_ && ::tcgetpgrp(fd_) == ::getpgrp();
}

void LentTerminal::lend() {
  if (!is_ours()) {
    return;
  }
  termios mode = *found_;
  mode.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
  mode.c_cc[VMIN] = 1;
  mode.c_cc[VTIME] = 0;
  ::tcsetattr(fd_, TCSADRAIN, &mode);
}

void LentTerminal::restore() {
  if (is_ours()) {
    ::tcsetattr(fd_, TCSANOW, &*found_);
  }
}

// Not while another process group has the terminal: each read would fail.
int TerminalInput::readable_fd() const {
  const bool is_ours = ::tcgetpgrp(keyboard_fd_) == ::getpgrp();
  return !is_over_ && is_ours && pending_.size() < kMaxPending ? keyboard_fd_ : -1;
}

void TerminalInput::read_some() {
  char keys[1024];
  const ssize_t n = ::read(keyboard_fd_, keys, sizeof keys);
  if (n > 0) {
    pending_.append(keys, static_cast<size_t>(n));
    copy_window_size(keyboard_fd_, terminal_fd_);
    write_some();
  } else if (n == 0) {
    is_over_ = true;  // it was hung up
  }
}

void TerminalInput::write_some() {
  while (!pending_.empty()) {
    const ssize_t n = ::write(terminal_fd_, pending_.data(), pending_.size());
    if (n < 0 && errno == EINTR) {
      continue;
    }
    if (n < 0 && errno != EAGAIN) {
      pending_.clear();  // the rank has closed it
      is_over_ = true;
    }
    if (n <= 0) {
      return;
    }
    pending_.erase(0, static_cast<size_t>(n));
  }
}

}  // namespace lockstep::launch
