#pragma once

// The launcher's terminal and the one it gives to a rank (--stdin RANK).

#include <optional>
#include <string>
#include <termios.h>

#include "base/unique_fd.h"

namespace lockstep::launch {

// A pseudo-terminal: read is the side of the process that acts as the terminal, write the
// program's. Its size is that of the terminal on `like_fd`. What a program writes comes out as it
// was written: the terminal that shows it adds carriage returns itself. Throws IoError.
base::FdPair make_terminal(int like_fd);

// The program's side gets the size that the terminal on `like_fd` has now.
void copy_window_size(int like_fd, int terminal_fd);

// How the launcher's terminal was found, and the way in which it is lent to a rank: every key is
// passed on at once and not shown, for the rank's terminal does that. Ctrl-C and Ctrl-Z still go
// to the launcher. Does nothing while another process group has the terminal, or if it is none.
class LentTerminal {
 public:
  explicit LentTerminal(int fd);  // only records how the terminal was found

  bool is_terminal() const { return found_.has_value(); }
  void lend();
  void restore();

 private:
  bool is_ours() const;

  int fd_;
  std::optional<termios> found_;
};

// Carries what is typed to the rank. Lives in a process that ignores SIGTTIN.
class TerminalInput {
 public:
  // `terminal_fd`: the end that make_terminal() reads from; not owned.
  TerminalInput(int keyboard_fd, int terminal_fd)
      : keyboard_fd_(keyboard_fd), terminal_fd_(terminal_fd) {}

  // For poll(2): -1 where there is nothing to wait for.
  int readable_fd() const;
  int writable_fd() const { return pending_.empty() ? -1 : terminal_fd_; }

  void read_some();
  void write_some();

 private:
  int keyboard_fd_;
  int terminal_fd_;
  bool is_over_ = false;
  std::string pending_;
};

}  // namespace lockstep::launch
