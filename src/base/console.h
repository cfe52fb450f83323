#pragma once

// Where the lines of all ranks of a node go: this process's standard output or error.

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <sys/types.h>

#include "base/unique_fd.h"

namespace lockstep::base {

// The line that stands unfinished at the end of what was written: a prompt, a progress display.
struct OpenLine {
  int64_t writer = 0;      // 0: there is none, the next byte begins a line
  bool is_redraw = false;  // it came after a "\r": another display may take its place
  bool at_start = false;   // a "\r" was the last byte: what comes next replaces it
};

// What the processes of a job know in common of the places they write to, which are often one: a
// terminal is standard output and error of the launcher and of every agent. Made once, before
// forking; a child shares it. A lock is given up when its process ends, however it ends.
class ConsoleBoard {
 public:
  ConsoleBoard();  // throws IoError

  // The number of the place that a descriptor leads to: the same for two that lead to the same.
  size_t place_of(int fd) const;

  // False if another process, or another owner here, has it; never waits.
  bool try_lock(size_t place, const void* owner);
  void unlock(size_t place, const void* owner);

  OpenLine& line(size_t place);  // read and written under its lock

  int fd() const { return memory_.get(); }  // what a forked process must keep open

 private:
  static constexpr size_t kNumPlaces = 2;

  UniqueFd memory_;
  Mapping lines_;
  const void* owners_[kNumPlaces] = {};
  pid_t owners_pid_ = 0;  // whose owners they are: a forked child has none of its parent's locks
};

struct ConsoleOptions {
  int fd = -1;                    // REQUIRED: 1 or 2
  ConsoleBoard* board = nullptr;  // shared with others who write there; nullptr: there are none
};

inline constexpr int64_t kOwnWriter = INT64_MAX;  // the launcher's own lines

struct ConsolePiece {
  int64_t writer = 0;       // REQUIRED, > 0: one per stream of a rank
  std::string_view prefix;  // of a line, if this piece begins one
  std::string_view text;    // ends in "\n" or "\r", or is a part of a line
  bool is_open = false;     // more of the line follows; otherwise an unfinished line is ended
  bool is_redraw = false;   // the writer's last byte before this was a "\r"
  // Every byte passes as it is, also in the middle of another's line.
  bool is_raw = false;
};

// Queues pieces of output and writes them, lines of different writers apart. Never blocks: when
// the reader is slow the queue grows, and the caller stops reading from the workers (backlog()),
// who then wait as they would on a slow terminal.
class Console {
 public:
  explicit Console(ConsoleOptions options) : options_(options), fd_(options.fd) {}

  void add(const ConsolePiece& piece);

  size_t backlog() const { return queued_bytes_ + chunk_.size() - written_; }

  // All bytes that were written so far: what a reader who reads makes grow.
  uint64_t bytes_taken() const { return bytes_taken_; }

  // For a reader who does not read: what is queued is dropped, and so is what comes until there is
  // room again. The piece that is under way stays.
  void leave_reader();
  bool reader_is_left() const { return reader_is_left_; }

  // Call it when poll(2) says that fd() can be written to; otherwise it does nothing. Writes as
  // many whole pieces at once as a pipe takes without tearing them (PIPE_BUF), a longer one by
  // itself.
  void write_some();

  // For poll(2). Others may hold the place though there is room: then wait a moment (is_busy())
  // instead of asking poll(2) again and again.
  int fd() const { return fd_; }
  bool is_busy() const { return is_busy_; }
  static constexpr int kBusyPauseMs = 2;

  // The reader is gone (EPIPE): nothing is queued or written any more.
  bool closed() const { return closed_; }

 private:
  struct Entry {
    int64_t writer;
    std::string prefix;
    std::string text;
    bool is_open, is_redraw, is_raw;
  };

  void open_without_blocking();
  bool next_chunk();
  static void render(const Entry& entry, OpenLine& line, std::string& out);
  bool has_room() const;
  bool write_chunk();
  ssize_t write_once(const char* bytes, size_t size) const;
  void give_up(int error);

  ConsoleOptions options_;
  UniqueFd own_fd_;  // a description of our own of the same pipe or terminal, if it can be had
  int fd_ = -1;
  bool is_opened_ = false;
  bool is_socket_ = false;
  size_t place_ = 0;
  OpenLine line_;  // as it will be once chunk_ is written
  std::deque<Entry> queue_;
  size_t queued_bytes_ = 0;
  std::string chunk_;  // rendered and under way; the place is locked while there is one
  size_t written_ = 0;
  bool is_busy_ = false;
  uint64_t bytes_taken_ = 0;
  bool reader_is_left_ = false;
  bool closed_ = false;
  bool failed_ = false;  // another error: said once, output is dropped
};

// The lines of the log are this console's while this lives: written directly, they would wait for a
// reader that has stopped, and the job with them.
class LogOnConsole {
 public:
  explicit LogOnConsole(Console& console);
  ~LogOnConsole();
  LogOnConsole(const LogOnConsole&) = delete;
};

// "r2: " or, with several nodes, "n1 r6: "; coloured by rank if `console_fd` is a
// terminal and NO_COLOR is not set.
std::string line_prefix(int rank, int node, int num_nodes, int console_fd);

}  // namespace lockstep::base
