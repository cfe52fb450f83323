#pragma once

// Where the lines of all ranks of a node go: this process's standard output or error.

#include <deque>
#include <string>
#include <string_view>

namespace lockstep {

struct ConsoleOptions {
  int fd = -1;       // REQUIRED: 1 or 2
  int lock_fd = -1;  // a file whose lock the agents of several nodes share; -1: there is one agent
};

// Queues lines and writes them whole. Never blocks for long: when the reader is slow the queue
// grows, and the caller stops reading from the workers (backlog()), who then wait as they would on
// a slow terminal.
class Console {
 public:
  explicit Console(ConsoleOptions options) : options_(options) {}

  void add(std::string_view prefix, std::string_view line);

  size_t backlog() const { return pending_.size() - written_; }

  // Call it when poll(2) says that fd() can be written to. Writes as many whole lines at once as a
  // pipe takes in one piece (PIPE_BUF), a longer line in one write of its own.
  void write_some();

  int fd() const { return options_.fd; }

  // The reader is gone (EPIPE): nothing is queued or written any more.
  bool closed() const { return closed_; }

 private:
  bool write_chunk(size_t size);
  size_t next_chunk() const;
  void lock(bool on) const;
  void give_up(int error);

  ConsoleOptions options_;
  std::string pending_;
  size_t written_ = 0;             // of pending_
  std::deque<size_t> line_sizes_;  // of what is not yet written
  size_t chunk_left_ = 0;          // of the chunk under way; > 0 only after a short write
  bool closed_ = false;
  bool failed_ = false;  // another error: said once, lines are dropped
};

// "r2: " or, with several nodes, "n1 r6: "; coloured by rank if `console_fd` is a
// terminal and NO_COLOR is not set.
std::string line_prefix(int rank, int node, int num_nodes, int console_fd);

}  // namespace lockstep
