#include "base/console.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstdlib>
#include <fcntl.h>
#include <iterator>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

namespace lockstep::base {

ConsoleBoard::ConsoleBoard() : memory_(::memfd_create("lockstep-console", MFD_CLOEXEC)) {
  constexpr size_t kBytes = kNumPlaces * sizeof(OpenLine);
  if (!memory_ || ::ftruncate(memory_.get(), kBytes) != 0) {
    throw IoError("cannot make a file in memory for the console's lock: {}", errno_text(errno));
  }
  lines_ = Mapping(memory_.get(), kBytes, PROT_READ | PROT_WRITE, MAP_SHARED);
}

size_t ConsoleBoard::place_of(int fd) const {
  struct stat out {
  }, own{};
  const bool is_same = ::fstat(STDOUT_FILENO, &out) == 0 && ::fstat(fd, &own) == 0 &&
                       out.st_dev == own.st_dev && out.st_ino == own.st_ino;
  return is_same ? 0 : 1;
}

OpenLine& ConsoleBoard::line(size_t place) {
  return reinterpret_cast<OpenLine*>(lines_.data())[place];
}

bool ConsoleBoard::try_lock(size_t place, const void* owner) {
  if (owners_pid_ != ::getpid()) {
    owners_pid_ = ::getpid();
    std::fill(std::begin(owners_), std::end(owners_), nullptr);
  }
  if (owners_[place] != nullptr && owners_[place] != owner) {
    return false;  // the kernel's lock is the whole process's
  }
  struct flock range {};
  range.l_type = F_WRLCK;
  range.l_whence = SEEK_SET;
  range.l_start = static_cast<off_t>(place);
  range.l_len = 1;
  while (::fcntl(memory_.get(), F_SETLK, &range) != 0) {
    if (errno != EINTR) {
      return false;
    }
  }
  owners_[place] = owner;
  return true;
}

void ConsoleBoard::unlock(size_t place, const void* owner) {
  if (owners_pid_ != ::getpid() || owners_[place] != owner) {
    return;
  }
  owners_[place] = nullptr;
  struct flock range {};
  range.l_type = F_UNLCK;
  range.l_whence = SEEK_SET;
  range.l_start = static_cast<off_t>(place);
  range.l_len = 1;
  ::fcntl(memory_.get(), F_SETLK, &range);
}

// O_NONBLOCK belongs to the open file, which others have too (the user's shell, at a terminal). So
// a pipe or terminal is opened again; a file must not be: its position is shared with others. Done
// when there is something to write: until then the descriptor may come to lead elsewhere.
void Console::open_without_blocking() {
  if (options_.board != nullptr) {
    place_ = options_.board->place_of(options_.fd);
  }
  struct stat info {};
  if (::fstat(options_.fd, &info) != 0) {
    return;
  }
  is_socket_ = S_ISSOCK(info.st_mode);
  if (S_ISFIFO(info.st_mode) || ::isatty(options_.fd) != 0) {
    const std::string path = fmt::format("/proc/self/fd/{}", options_.fd);
    own_fd_.reset(::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  }
  if (own_fd_) {  // refused for a pipe of another user's: then small writes have to do
    fd_ = own_fd_.get();
  }
}

void Console::leave_reader() {
  queue_.clear();
  queued_bytes_ = 0;
  reader_is_left_ = true;
}

void Console::add(const ConsolePiece& piece) {
  if (closed_ || failed_ || (reader_is_left_ && !has_room())) {
    return;
  }
  reader_is_left_ = false;
  if (!is_opened_) {
    open_without_blocking();
    is_opened_ = true;
  }
  queue_.push_back({piece.writer, std::string(piece.prefix), std::string(piece.text), piece.is_open,
                    piece.is_redraw, piece.is_raw});
  queued_bytes_ += piece.prefix.size() + piece.text.size() + 1;
}

// Appends what the piece looks like after `line`, and says what it leaves behind.
void Console::render(const Entry& entry, OpenLine& line, std::string& out) {
  const bool ends = entry.text.ends_with('\n');
  const bool returns = entry.text.ends_with('\r');
  const bool is_redraw = entry.is_redraw || returns;
  const bool is_own = line.writer == entry.writer;
  const bool is_anothers = line.writer != 0 && !is_own;
  if (!entry.is_raw && is_anothers && entry.text == "\r") {
    return;  // the cursor is not in this writer's line
  }
  if (entry.text.empty() && (entry.is_raw || !is_own)) {
    return;  // there is nothing to end: another writer has done it already
  }
  if (!entry.is_raw && is_anothers) {
    // One display may replace another, as it would at a terminal; a line never does.
    out += line.is_redraw && is_redraw ? (line.at_start ? "" : "\r") : "\n";
  }
  const bool continues = is_own && !line.at_start;
  if (!entry.is_raw && !continues && entry.text != "\r" && !entry.text.empty()) {
    out += entry.prefix;
  }
  out += entry.text;
  if (ends) {
    line = {};
  } else if (returns) {
    line = {.writer = entry.writer, .is_redraw = true, .at_start = true};
  } else if (entry.is_open || entry.is_raw) {
    const bool was_redraw = continues && line.is_redraw;
    line = {.writer = entry.writer, .is_redraw = is_redraw || was_redraw};
  } else if (!(is_own && line.at_start && entry.text.empty())) {
    out += '\n';  // or the next prefix would stand in its middle
    line = {};
  }
}

// Renders what is written next and takes the place for it; false if there is nothing, or another
// has it.
bool Console::next_chunk() {
  ConsoleBoard* board = options_.board;
  is_busy_ = !queue_.empty() && board != nullptr && !board->try_lock(place_, this);
  if (queue_.empty() || is_busy_) {
    return false;
  }
  line_ = board != nullptr ? board->line(place_) : line_;
  chunk_.clear();
  written_ = 0;
  while (!queue_.empty()) {
    const Entry& entry = queue_.front();
    const size_t bytes = entry.prefix.size() + entry.text.size() + 1;
    if (!chunk_.empty() && chunk_.size() + bytes + 1 > PIPE_BUF) {
      break;
    }
    render(entry, line_, chunk_);
    queued_bytes_ -= bytes;
    queue_.pop_front();
  }
  return true;
}

void Console::give_up(int error) {
  closed_ = error == EPIPE;
  failed_ = !closed_;
  queue_.clear();
  chunk_.clear();
  written_ = queued_bytes_ = 0;
  if (failed_) {
    log::warn("launch",
              "cannot write the ranks' output to descriptor {}: {}; it is dropped from here on",
              options_.fd, errno_text(error));
  }
}

ssize_t Console::write_once(const char* bytes, size_t size) const {
  if (is_socket_) {
    return ::send(fd_, bytes, size, MSG_DONTWAIT | MSG_NOSIGNAL);
  }
  struct stat info {};
  const bool may_block =
      !own_fd_ && ::fstat(fd_, &info) == 0 && (S_ISFIFO(info.st_mode) || S_ISCHR(info.st_mode));
  return ::write(fd_, bytes, may_block ? std::min<size_t>(size, PIPE_BUF) : size);
}

// False if there is no room now or the console is of no use any more.
bool Console::write_chunk() {
  const ssize_t n = write_once(chunk_.data() + written_, chunk_.size() - written_);
  if (n < 0 && errno != EINTR && errno != EAGAIN) {
    const int error = errno;
    give_up(error);
    if (options_.board != nullptr) {
      options_.board->unlock(place_, this);
    }
    return false;
  }
  written_ += static_cast<size_t>(std::max<ssize_t>(n, 0));
  bytes_taken_ += static_cast<uint64_t>(std::max<ssize_t>(n, 0));
  if (written_ < chunk_.size()) {
    return n > 0;  // still locked: the rest of the line comes first
  }
  chunk_.clear();
  written_ = 0;
  if (options_.board != nullptr) {
    options_.board->line(place_) = line_;
    options_.board->unlock(place_, this);
  }
  return true;
}

bool Console::has_room() const {
  pollfd room{.fd = fd_, .events = POLLOUT, .revents = 0};
  return ::poll(&room, 1, 0) == 1;
}

void Console::write_some() {
  constexpr int kWrites = 16;
  for (int i = 0; i < kWrites; ++i) {
    if (chunk_.empty() && !next_chunk()) {
      break;
    }
    if ((!chunk_.empty() && !has_room()) || !write_chunk()) {
      break;
    }
  }
}

LogOnConsole::LogOnConsole(Console& console) {
  log::set_sink([&console](log::Level, std::string_view line) {
    const auto now = std::chrono::system_clock::now();
    const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch());
    const std::string text = fmt::format("{:%H:%M:%S}.{:03} {}\n",
                                         fmt::localtime(std::chrono::system_clock::to_time_t(now)),
                                         ms.count() % 1000, line);
    console.add({.writer = kOwnWriter, .text = text});
    console.write_some();
  });
}

LogOnConsole::~LogOnConsole() {
  log::set_sink({});
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

}  // namespace lockstep::base
