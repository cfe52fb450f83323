#include "launch/node/agent.h"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <filesystem>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "base/process/fork.h"
#include "launch/node/error_file.h"
#include "launch/node/sweep.h"

namespace lockstep::launch {

namespace {

constexpr size_t kReadBytes = 64 * 1024;
constexpr size_t kMaxBacklog = 256 * 1024;  // in a console, above which its streams are not read
constexpr size_t kMaxDrain = 1 << 20;  // of a dead worker's output: its children may go on writing
constexpr auto kReaderPatience = std::chrono::milliseconds(500);  // in a hurry, if nothing is read

int64_t writer_of(int rank, size_t stream) {
  return 2 * static_cast<int64_t>(rank) + static_cast<int64_t>(stream) + 1;
}

}  // namespace

Agent::Agent(const NodePlan& plan, int leader_fd, base::ConsoleBoard& board)
    : plan_(plan),
      leader_fd_(leader_fd),
      consoles_{base::Console({.fd = STDOUT_FILENO, .board = &board}),
                base::Console({.fd = STDERR_FILENO, .board = &board})},
      keyboard_(STDIN_FILENO) {}

int Agent::run() {
  const base::LogOnConsole log_lines(consoles_[1]);
  base::adopt_orphans();  // if the guardian is killed, its orphans become children of the agent
  base::raise_file_limit();
  try {
    start_guardian();
  } catch (const Error& error) {
    send_message(leader_fd_, {.kind = MessageKind::Failed, .text = error.what()});
    return 1;
  }
  while (!guardian_gone_) {
    relay();
  }
  reap_guardian();
  flush();
  if (typed_) {
    keyboard_.restore();
  }
  return 0;
}

std::vector<WorkerStreams> Agent::open_streams() {
  std::vector<WorkerStreams> worker_ends;
  for (const WorkerPlan& worker : plan_.workers) {
    Rank rank{.rank = worker.rank, .plan = &worker};
    std::array<base::UniqueFd, kNumStreams> ends;
    for (size_t s = 0; s < kNumStreams; ++s) {
      base::FdPair pipe = base::make_pipe();
      ::fcntl(pipe.read.get(), F_SETFL, O_NONBLOCK);  // of this end only
      rank.streams[s] = open_stream(worker, s);
      rank.streams[s].pipe = std::move(pipe.read);
      ends[s] = std::move(pipe.write);
    }
    worker_ends.push_back({.out = std::move(ends[0]), .err = std::move(ends[1])});
    if (worker.has_stdin) {
      open_input(rank, worker_ends.back());
    }
    ranks_.push_back(std::move(rank));
  }
  return worker_ends;
}

// The rank gets the launcher's input: a file or a pipe as it is, a terminal as a terminal of the
// rank's own. That one is its controlling terminal (getpass, ssh) and takes its output and errors
// in one stream, as terminals do (pdb; Python prompts on standard error).
void Agent::open_input(Rank& rank, WorkerStreams& ends) {
  if (!keyboard_.is_terminal()) {
    ends.in.reset(::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
    return;
  }
  base::FdPair terminal = make_terminal(STDIN_FILENO);
  ::fcntl(terminal.read.get(), F_SETFL, O_RDWR | O_NONBLOCK);
  ends.in.reset(::fcntl(terminal.write.get(), F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
  ends.err.reset(::fcntl(terminal.write.get(), F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
  ends.out = std::move(terminal.write);
  rank.streams[0].pipe = std::move(terminal.read);
  rank.streams[0].is_terminal = true;
  rank.streams[1].pipe.reset();
  typed_.emplace(STDIN_FILENO, rank.streams[0].pipe.get());
  keyboard_.lend();
}

Agent::Stream Agent::open_stream(const WorkerPlan& worker, size_t stream) {
  const OutputOptions& output = plan_.output;
  const StreamRoute route = stream_route(output, worker.local_rank, stream);
  Stream result{.to_console = route.to_console};
  if (!output.prefix_template.empty()) {
    result.prefix = filled_prefix(output.prefix_template, worker.rank, worker.local_rank);
  } else if (output.prefix) {
    result.prefix =
        base::line_prefix(worker.rank, plan_.node, plan_.num_nodes, consoles_[stream].fd());
  }
  if (route.to_file && !worker.log_folder.empty()) {
    result.log = LogFile(worker.log_folder + (stream == 0 ? "/stdout.log" : "/stderr.log"));
  }
  return result;
}

void Agent::open_filtered() {
  const std::string folder =
      std::filesystem::path(plan_.workers.front().log_folder).parent_path().string();
  for (size_t s = 0; s < kNumStreams; ++s) {
    if (!filters(s).empty() && !folder.empty()) {
      filtered_[s] = LogFile(
          fmt::format("{}/filtered_{}_n{}.log", folder, s == 0 ? "stdout" : "stderr", plan_.node));
    }
  }
}

const std::vector<std::string>& Agent::filters(size_t stream) const {
  return stream == 0 ? plan_.output.stdout_filters : plan_.output.stderr_filters;
}

// Reads it once: a file outside the log folder has no other reader, and nobody else removes it.
std::string Agent::Rank::take_error() const {
  const auto error = read_error_file(plan->error_file);
  if (plan->log_folder.empty()) {
    ::unlink(plan->error_file.c_str());
  }
  return error ? error->message : "";
}

void Agent::start_guardian() {
  std::vector<WorkerStreams> worker_ends = open_streams();
  open_filtered();
  base::FdPair link = base::make_socket_pair(SOCK_SEQPACKET);
  const int yes = 1;
  // Every message then carries its sender's pid as this process sees it, out of any PID namespace.
  if (::setsockopt(link.read.get(), SOL_SOCKET, SO_PASSCRED, &yes, sizeof yes) != 0) {
    throw IoError("cannot set SO_PASSCRED: {}", base::errno_text(errno));
  }
  if (base::has_pid_namespace(plan_.isolation)) {
    base::unshare_pid_namespace(plan_.isolation);
  }
  const int control_fd = link.write.get();
  guardian_ = base::fork_child([&] {
    std::vector<int> keep{control_fd};
    for (const WorkerStreams& streams : worker_ends) {
      keep.insert(keep.end(), {streams.in.get(), streams.out.get(), streams.err.get()});
    }
    base::close_all_except(std::move(keep));
    return Guardian(plan_, control_fd).run(std::move(worker_ends));
  });
  control_ = std::move(link.read);
}

bool Agent::has_room(const Rank& rank, size_t stream) const {
  return !rank.streams[stream].to_console || consoles_[stream].backlog() < kMaxBacklog;
}

base::Deadline Agent::next_timeout() const {
  base::Deadline next = patience_[0].until.earlier(patience_[1].until);
  for (const base::Console& console : consoles_) {
    if (console.is_busy()) {
      next = next.earlier(
          base::Deadline::after(std::chrono::milliseconds(base::Console::kBusyPauseMs)));
    }
  }
  for (const Rank& rank : ranks_) {
    for (size_t s = 0; s < kNumStreams; ++s) {
      if (has_room(rank, s)) {
        next = next.earlier(rank.streams[s].splitter.due());
      }
    }
  }
  return next;
}

void Agent::relay() {
  struct Source {
    PollSet::Entry entry;
    Rank* rank;
    size_t stream;
  };
  PollSet polls;
  const auto leader = polls.add(leader_fd_);
  const auto guardian = polls.add(control_.get());
  const auto keyboard = polls.add(typed_ ? typed_->readable_fd() : -1);
  const auto terminal = polls.add(typed_ ? typed_->writable_fd() : -1, POLLOUT);
  add_consoles(polls);
  std::vector<Source> sources;
  for (Rank& rank : ranks_) {
    for (size_t s = 0; s < kNumStreams; ++s) {
      if (rank.streams[s].pipe && has_room(rank, s)) {
        sources.push_back({polls.add(rank.streams[s].pipe.get()), &rank, s});
      }
    }
  }
  if (!polls.wait(next_timeout())) {
    return;
  }
  if (polls.is_ready(leader)) {
    read_leader();
  }
  if (polls.is_ready(keyboard)) {
    typed_->read_some();
  }
  if (polls.is_ready(terminal)) {
    typed_->write_some();
  }
  write_consoles();
  leave_frozen_readers();
  for (const Source& source : sources) {
    if (polls.is_ready(source.entry)) {
      read_stream(*source.rank, source.stream);
    }
  }
  give_out_unfinished();
  if (polls.is_ready(guardian)) {
    read_guardian();
  }
}

void Agent::add_consoles(PollSet& polls) const {
  for (const base::Console& console : consoles_) {
    polls.add(console.backlog() > 0 && !console.is_busy() ? console.fd() : -1, POLLOUT);
  }
}

void Agent::write_consoles() {
  for (base::Console& console : consoles_) {
    if (console.backlog() > 0) {
      console.write_some();
    }
  }
}

// A rank that was told to end may have to save its state, which it cannot while it waits for a
// reader.
void Agent::leave_frozen_readers() {
  for (size_t s = 0; s < kNumStreams; ++s) {
    base::Console& console = consoles_[s];
    Patience& patience = patience_[s];
    const bool is_taken = console.bytes_taken() != patience.bytes_taken;
    patience.bytes_taken = console.bytes_taken();
    if (!in_a_hurry_ || console.backlog() == 0 || console.reader_is_left()) {
      patience.until = base::Deadline::never();
    } else if (is_taken || patience.until.is_never()) {
      patience.until = base::Deadline::after(kReaderPatience);
    } else if (patience.until.expired()) {
      patience.until = base::Deadline::never();
      console.leave_reader();
    }
  }
}

// Comes after reading: a rank that has written more in the meantime has not left its line open.
void Agent::give_out_unfinished() {
  for (Rank& rank : ranks_) {
    for (size_t s = 0; s < kNumStreams; ++s) {
      Stream& stream = rank.streams[s];
      const bool is_due = stream.is_terminal || stream.splitter.due().expired();
      if (is_due && has_room(rank, s)) {
        stream.splitter.finish(
            [&](std::string_view text) { take_piece(rank, s, text, /*is_open=*/true); });
      }
    }
  }
}

void Agent::read_leader() {
  for (;;) {
    const Received received = receive_message(leader_fd_);
    if (received.closed) {
      if (typed_) {
        keyboard_.restore();
      }
      ::_exit(1);  // which the guardian sees, and kills the workers
    }
    if (!received.message) {
      return;
    }
    const Message& message = *received.message;
    in_a_hurry_ =
        in_a_hurry_ || message.kind == MessageKind::Hurry || message.kind == MessageKind::Kill;
    if (message.kind != MessageKind::Hurry) {
      send_message(control_.get(), message);
    }
  }
}

void Agent::read_guardian() {
  for (;;) {
    Received received = receive_message(control_.get());
    if (received.closed) {
      guardian_gone_ = true;
      return;
    }
    if (!received.message) {
      return;
    }
    pass_on(std::move(*received.message), received.sender);
  }
}

void Agent::pass_on(Message message, pid_t sender) {
  for (Rank& rank : ranks_) {
    if (rank.rank != message.rank) {
      continue;
    }
    if (message.kind == MessageKind::Started) {
      rank.pid = sender;
    } else if (message.kind == MessageKind::Ended) {
      drain(rank);
      message.end.last_lines = rank.tail.text();
      message.end.error = rank.take_error();
    }
    message.pid = rank.pid;
  }
  send_message(leader_fd_, message);
}

// False if there is nothing to read now.
bool Agent::read_stream(Rank& rank, size_t stream) {
  static char buffer[kReadBytes];
  Stream& from = rank.streams[stream];
  const ssize_t n = ::read(from.pipe.get(), buffer, sizeof buffer);
  if (n <= 0) {
    const bool is_terminals_end = n < 0 && from.is_terminal && errno == EIO;
    if (n == 0 || is_terminals_end) {
      end_stream(rank, stream);
    }
    return n < 0 && errno == EINTR;
  }
  const std::string_view bytes(buffer, static_cast<size_t>(n));
  from.log.write(bytes);
  from.splitter.feed(
      bytes, [&](std::string_view line) { take_piece(rank, stream, line, /*is_open=*/false); });
  if (filtered_[stream].is_open()) {
    from.whole_lines.feed(bytes,
                          [&](std::string_view line) { take_whole_line(rank, stream, line); });
  }
  if (consoles_[stream].closed() && !from.log.is_open()) {
    // Nobody reads: the worker gets SIGPIPE, as it would without the agent.
    from.pipe.reset();
    return false;
  }
  return true;
}

void Agent::drain(Rank& rank) {
  for (size_t s = 0; s < kNumStreams; ++s) {
    for (size_t bytes = 0; bytes < kMaxDrain && rank.streams[s].pipe; bytes += kReadBytes) {
      if (!read_stream(rank, s)) {
        break;
      }
    }
  }
}

void Agent::end_stream(Rank& rank, size_t stream) {
  Stream& from = rank.streams[stream];
  from.splitter.finish(
      [&](std::string_view text) { take_piece(rank, stream, text, /*is_open=*/false); });
  from.whole_lines.finish([&](std::string_view line) { take_whole_line(rank, stream, line); });
  if (from.is_line_open) {
    take_piece(rank, stream, "", /*is_open=*/false);  // ends it
  }
  if (from.is_terminal) {
    typed_.reset();
    keyboard_.restore();
  }
  from.pipe.reset();
}

void Agent::take_piece(Rank& rank, size_t stream, std::string_view text, bool is_open) {
  rank.tail.add(text, stream);
  Stream& from = rank.streams[stream];
  if (from.to_console) {
    const bool is_data = stream == 0 && rank.rank == 0 && is_json_object(text);
    consoles_[stream].add({.writer = writer_of(rank.rank, stream),
                           .prefix = is_data ? std::string_view() : std::string_view(from.prefix),
                           .text = text,
                           .is_open = is_open,
                           .is_redraw = from.after_return,
                           .is_raw = from.prefix.empty()});
  }
  from.after_return = text.ends_with('\r');
  from.is_line_open = is_open;
}

void Agent::take_whole_line(const Rank& rank, size_t stream, std::string_view line) {
  if (filtered_[stream].is_open() && holds_any(line, filters(stream))) {
    const std::string prefix = base::line_prefix(rank.rank, plan_.node, plan_.num_nodes, -1);
    filtered_[stream].write(prefix + std::string(line) + (line.ends_with('\n') ? "" : "\n"));
  }
}

void Agent::reap_guardian() {
  int status = 0;
  while (::waitpid(guardian_, &status, 0) < 0 && errno == EINTR) {
  }
  const base::ExitStatus end = base::ExitStatus::from_wait(status);
  if (!end.ok()) {
    kill_descendants(base::Deadline::never());
    send_message(leader_fd_, {.kind = MessageKind::GuardianLost, .pid = guardian_, .status = end});
  }
}

void Agent::flush() {
  for (Rank& rank : ranks_) {
    drain(rank);
    for (size_t s = 0; s < kNumStreams; ++s) {
      end_stream(rank, s);
    }
  }
  // A slow reader, such as a pager, is waited for, but not once the user has ended the job.
  const auto is_awaited = [](const base::Console& console) {
    return console.backlog() > 0 && !console.reader_is_left();
  };
  while (std::any_of(consoles_.begin(), consoles_.end(), is_awaited)) {
    PollSet polls;
    const auto leader = polls.add(leader_fd_);
    add_consoles(polls);
    polls.wait(next_timeout());
    if (polls.is_ready(leader)) {
      read_leader();
    }
    write_consoles();
    leave_frozen_readers();
  }
}

}  // namespace lockstep::launch
