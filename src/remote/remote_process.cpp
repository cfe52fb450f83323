#include "remote/remote_process.h"

#include <cerrno>
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <lockstep/base/error.h>

namespace lockstep::remote {

namespace {

constexpr std::string_view kReadyLine = "\x01lockstep is ready\n";
constexpr size_t kReadBytes = 64 * 1024;
constexpr size_t kMaxShownBytes = 500;
// As ssh and a shell report them.
constexpr int kSshFailed = 255;
constexpr int kNotFound = 127;
constexpr int kNotExecutable = 126;

std::string_view trimmed(std::string_view line) {
  while (!line.empty() && (line.back() == '\n' || line.back() == '\r' || line.back() == ' ')) {
    line.remove_suffix(1);
  }
  return line;
}

void set_nonblocking(const base::UniqueFd& fd) {
  ::fcntl(fd.get(), F_SETFL, ::fcntl(fd.get(), F_GETFL) | O_NONBLOCK);
}

base::Process start_process(const RemoteStart& start, int in, int out, int err) {
  base::ProcessOptions options{
      .stdin_fd = in, .stdout_fd = out, .stderr_fd = err, .new_group = true};
  if (start.is_local) {
    options.argv = {start.program};
    options.argv.insert(options.argv.end(), start.arguments.begin(), start.arguments.end());
  } else {
    options.argv =
        ssh_command(start.host, start.ssh, remote_lockstep(start.program, start.arguments));
  }
  try {
    return base::Process(options);
  } catch (const IoError& error) {
    throw IoError("{}; {} is reached by it: install openssh-client, or name it in LOCKSTEP_SSH",
                  error.what(), start.host.text());
  }
}

}  // namespace

RemoteProcess::RemoteProcess(RemoteStart start) : start_(std::move(start)) {
  // A socket, not a pipe: writing to one whose reader is gone must not be a SIGPIPE.
  base::FdPair input = base::make_socket_pair(SOCK_STREAM);
  base::FdPair out = base::make_pipe();
  base::FdPair err = base::make_pipe();
  process_ = start_process(start_, input.read.get(), out.write.get(), err.write.get());
  input_ = std::move(input.write);
  streams_[0].pipe = std::move(out.read);
  streams_[1].pipe = std::move(err.read);
  for (const Stream& stream : streams_) {
    set_nonblocking(stream.pipe);
  }
  start_deadline_ = base::Deadline::after(start_.start_timeout);
}

void RemoteProcess::send(std::string_view bytes) {
  to_send_ += bytes;
  write_input();
}

void RemoteProcess::close_input() {
  closing_ = true;
  write_input();
}

void RemoteProcess::write_input() {
  while (input_ && !to_send_.empty()) {
    const ssize_t n =
        ::send(input_.get(), to_send_.data(), to_send_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n >= 0) {
      to_send_.erase(0, static_cast<size_t>(n));
    } else if (errno == EAGAIN) {
      return;
    } else if (errno != EINTR) {
      to_send_.clear();  // its end is seen by the pidfd
    }
  }
  if (closing_) {
    input_.reset();
  }
}

void RemoteProcess::add_polls(std::vector<pollfd>& polls, bool read_out, bool read_err) {
  streams_[0].is_paused = !read_out;
  streams_[1].is_paused = !read_err;
  polls.push_back({to_send_.empty() ? -1 : input_.get(), POLLOUT, 0});
  // Before it is ready, nothing goes to the caller: no reason to wait for it.
  polls.push_back({read_out || !ready_ ? streams_[0].pipe.get() : -1, POLLIN, 0});
  polls.push_back({read_err || !ready_ ? streams_[1].pipe.get() : -1, POLLIN, 0});
  polls.push_back({end_ ? -1 : process_.pidfd(), POLLIN, 0});
}

base::Deadline RemoteProcess::deadline() const {
  base::Deadline next = ready_ || end_ || late_ ? base::Deadline::never() : start_deadline_;
  for (const Stream& stream : streams_) {
    if (start_.gives_parts && stream.ready && !stream.is_paused) {
      next = next.earlier(stream.splitter.due());
    }
  }
  return next;
}

void RemoteProcess::handle(std::span<const pollfd> polls, const TakeLine& take) {
  if (polls[0].revents != 0) {
    write_input();
  }
  for (size_t s = 0; s < streams_.size(); ++s) {
    if (polls[1 + s].revents != 0) {
      read_stream(s, take);
    }
    Stream& from = streams_[s];
    if (start_.gives_parts && from.ready && !from.is_paused && from.splitter.due().expired()) {
      from.splitter.finish([&](std::string_view text) { take_line(s, text, take); });
    }
  }
  if (polls[3].revents != 0) {
    finish(take);
  } else if (!ready_ && !end_ && !late_ && start_deadline_.expired()) {
    late_ = true;
    kill();
  }
}

// False if there is nothing to read now.
bool RemoteProcess::read_stream(size_t stream, const TakeLine& take) {
  static char buffer[kReadBytes];
  Stream& from = streams_[stream];
  const ssize_t n = from.pipe ? ::read(from.pipe.get(), buffer, sizeof buffer) : -1;
  if (n == 0) {
    from.pipe.reset();
  }
  if (n <= 0) {
    return n < 0 && from.pipe && errno == EINTR;
  }
  from.splitter.feed({buffer, static_cast<size_t>(n)},
                     [&](std::string_view line) { take_line(stream, line, take); });
  return true;
}

void RemoteProcess::take_line(size_t stream, std::string_view line, const TakeLine& take) {
  if (!streams_[stream].ready) {
    // ends_with: a start-up file may have left its last line unfinished.
    ready_ = streams_[stream].ready = line.ends_with(kReadyLine);
    if (ready_) {
      last_error_.clear();
      return;
    }
  } else {
    take(static_cast<int>(stream) + 1, line);
  }
  if (stream == 1 && !trimmed(line).empty()) {
    last_error_ = trimmed(line).substr(0, kMaxShownBytes);
  }
}

// What is in the pipes, not what may still come: a connection that ssh keeps for later use
// (ControlPersist) holds them open.
void RemoteProcess::finish(const TakeLine& take) {
  for (size_t s = 0; s < streams_.size(); ++s) {
    while (read_stream(s, take)) {
    }
    streams_[s].splitter.finish([&](std::string_view line) { take_line(s, line, take); });
    streams_[s].pipe.reset();
  }
  input_.reset();
  to_send_.clear();
  end_ = describe(*process_.wait(base::Deadline::never()));
}

RemoteEnd RemoteProcess::describe(base::ExitStatus status) const {
  RemoteEnd end{.host = start_.host, .status = status, .was_ready = ready_};
  const std::string host = start_.host.text();
  const std::string said = last_error_.empty() ? status.text() : last_error_;
  const bool ssh_failed = status.code == kSshFailed && !start_.is_local;
  if (ready_) {
    end.text = ssh_failed ? fmt::format("the ssh connection to {} was lost: {}", host, said)
                          : fmt::format("lockstep on {} ended: {}", host, status.text());
  } else if (late_) {
    end.text = fmt::format("{} did not start lockstep within {}{}", host,
                           base::to_text(start_.start_timeout),
                           last_error_.empty() ? "" : fmt::format(" ({})", last_error_));
    end.fix = fmt::format("does `ssh {} true` answer at once?", host);
  } else if (ssh_failed) {
    end.text = fmt::format("cannot reach {} by ssh: {}", host, said);
    end.fix = fmt::format("`ssh {} true` must work without a password", host);
  } else if (status.code == kNotFound) {
    end.text = fmt::format("there is no lockstep on {}", host);
    end.fix = fmt::format("it must be at {}, as it is here, or in PATH there", start_.program);
  } else {
    end.text =
        fmt::format("lockstep on {} {}: {}", host,
                    status.code == kNotExecutable ? "cannot be executed" : "ended at once", said);
  }
  return end;
}

void announce_ready() {
  base::write_all(STDOUT_FILENO, kReadyLine.data(), kReadyLine.size());
  base::write_all(STDERR_FILENO, kReadyLine.data(), kReadyLine.size());
}

}  // namespace lockstep::remote
