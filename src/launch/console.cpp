#include "launch/console.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <fmt/format.h>

#include <lockstep/base/log.h>

#include "base/unique_fd.h"

namespace lockstep {

void Console::add(std::string_view prefix, std::string_view line) {
  if (closed_ || failed_) {
    return;
  }
  const size_t before = pending_.size();
  if (line != "\r") {
    pending_ += prefix;
  }
  pending_ += line;
  // A cut or unfinished line is ended, or the next prefix would stand in its middle; without
  // prefixes every byte passes unchanged.
  if (!prefix.empty() && !line.ends_with('\n') && !line.ends_with('\r')) {
    pending_ += '\n';
  }
  line_sizes_.push_back(pending_.size() - before);
}

size_t Console::next_chunk() const {
  size_t size = 0;
  for (const size_t line : line_sizes_) {
    if (size > 0 && size + line > PIPE_BUF) {
      break;
    }
    size += line;
  }
  return size;
}

void Console::lock(bool on) const {
  if (options_.lock_fd < 0) {
    return;
  }
  struct flock range {};
  range.l_type = static_cast<short>(on ? F_WRLCK : F_UNLCK);
  range.l_whence = SEEK_SET;
  while (::fcntl(options_.lock_fd, F_SETLKW, &range) != 0 && errno == EINTR) {
  }
}

void Console::give_up(int error) {
  closed_ = error == EPIPE;
  failed_ = !closed_;
  pending_.clear();
  line_sizes_.clear();
  written_ = chunk_left_ = 0;
  if (failed_) {
    log::warn("launch",
              "cannot write the ranks' output to descriptor {}: {}; it is dropped from here on",
              options_.fd, errno_text(error));
  }
}

// False if there is no room now or the console is of no use any more.
bool Console::write_chunk(size_t size) {
  if (chunk_left_ == 0) {
    lock(true);
    chunk_left_ = size;
  }
  ssize_t n = ::write(options_.fd, pending_.data() + written_, chunk_left_);
  if (n < 0 && errno != EINTR && errno != EAGAIN) {
    const int error = errno;
    give_up(error);
    lock(false);
    return false;
  }
  n = std::max<ssize_t>(n, 0);
  written_ += static_cast<size_t>(n);
  chunk_left_ -= static_cast<size_t>(n);
  if (chunk_left_ > 0) {
    return false;  // still locked: the rest of the line comes first
  }
  lock(false);
  for (size_t done = size; done > 0; line_sizes_.pop_front()) {
    done -= std::min(done, line_sizes_.front());
  }
  return true;
}

void Console::write_some() {
  constexpr int kChunks = 16;
  for (int i = 0; i < kChunks && backlog() > 0; ++i) {
    const size_t size = next_chunk();
    pollfd room{.fd = options_.fd, .events = POLLOUT, .revents = 0};
    if ((i > 0 && ::poll(&room, 1, 0) != 1) || !write_chunk(size)) {
      break;
    }
  }
  if (written_ == pending_.size() || written_ > (1u << 20)) {
    pending_.erase(0, written_);
    written_ = 0;
  }
}

std::string line_prefix(int rank, int node, int num_nodes, int console_fd) {
  const std::string plain =
      num_nodes > 1 ? fmt::format("n{} r{}:", node, rank) : fmt::format("r{}:", rank);
  const char* no_color = std::getenv("NO_COLOR");
  if (::isatty(console_fd) == 0 || (no_color != nullptr && *no_color != '\0')) {
    return plain + " ";
  }
  // Green, yellow, blue, magenta, cyan and their bright twins: red is left to errors.
  constexpr std::array<int, 10> kColors = {32, 33, 34, 35, 36, 92, 93, 94, 95, 96};
  const int color = kColors[static_cast<size_t>(rank) % kColors.size()];
  return fmt::format("\x1b[{}m{}\x1b[0m ", color, plain);
}

}  // namespace lockstep
