#include "launch/agent.h"

#include <cerrno>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <lockstep/base/error.h>

#include "launch/fork.h"
#include "launch/sweep.h"

namespace lockstep {

namespace {

constexpr size_t kReadBytes = 64 * 1024;
constexpr size_t kMaxBacklog = 256 * 1024;  // of a console, before its streams are left waiting
constexpr size_t kMaxDrain = 1 << 20;  // of a dead worker's stream: its children may still write

void raise_file_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    limit.rlim_cur = limit.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &limit);  // four descriptors per rank while starting
  }
}

}  // namespace

Agent::Agent(const NodePlan& plan, int leader_fd, int lock_fd)
    : plan_(plan),
      leader_fd_(leader_fd),
      consoles_{Console({.fd = STDOUT_FILENO, .lock_fd = lock_fd}),
                Console({.fd = STDERR_FILENO, .lock_fd = lock_fd})} {}

int Agent::run() {
  adopt_orphans();  // the second belt: if the guardian is killed, its orphans are ours
  raise_file_limit();
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
  return 0;
}

std::vector<WorkerStreams> Agent::open_streams() {
  std::vector<WorkerStreams> worker_ends;
  for (const WorkerPlan& worker : plan_.workers) {
    Rank rank{.rank = worker.rank};
    std::array<UniqueFd, kNumStreams> ends;
    for (size_t s = 0; s < kNumStreams; ++s) {
      Stream& stream = rank.streams[s];
      FdPair pipe = make_pipe();
      ::fcntl(pipe.read.get(), F_SETFL, O_NONBLOCK);  // of this end only
      stream.pipe = std::move(pipe.read);
      ends[s] = std::move(pipe.write);
      if (plan_.output.prefix) {
        stream.prefix = line_prefix(worker.rank, plan_.node, plan_.num_nodes, consoles_[s].fd());
      }
      if (!worker.log_folder.empty()) {
        stream.log = LogFile(worker.log_folder + (s == 0 ? "/stdout.log" : "/stderr.log"));
      }
    }
    worker_ends.push_back({std::move(ends[0]), std::move(ends[1])});
    ranks_.push_back(std::move(rank));
  }
  return worker_ends;
}

void Agent::start_guardian() {
  std::vector<WorkerStreams> worker_ends = open_streams();
  FdPair link = make_socket_pair(SOCK_SEQPACKET);
  const int yes = 1;
  // Every message then carries its sender's pid as this process sees it, out of any PID namespace.
  if (::setsockopt(link.read.get(), SOL_SOCKET, SO_PASSCRED, &yes, sizeof yes) != 0) {
    throw IoError("cannot set SO_PASSCRED: {}", errno_text(errno));
  }
  if (plan_.isolation == IsolationMode::PidNamespace) {
    unshare_pid_namespace();
  }
  const int control_fd = link.write.get();
  guardian_ = fork_child([&] {
    std::vector<int> keep{control_fd};
    for (const WorkerStreams& streams : worker_ends) {
      keep.insert(keep.end(), {streams.out.get(), streams.err.get()});
    }
    close_all_except(std::move(keep));
    return Guardian(plan_, control_fd).run(std::move(worker_ends));
  });
  control_ = std::move(link.read);
}

void Agent::relay() {
  std::vector<pollfd> polls;
  std::vector<std::pair<Rank*, size_t>> sources;
  polls.push_back({leader_fd_, POLLIN, 0});
  polls.push_back({control_.get(), POLLIN, 0});
  for (const Console& console : consoles_) {
    polls.push_back({console.backlog() > 0 ? console.fd() : -1, POLLOUT, 0});
  }
  const size_t first_source = polls.size();
  for (Rank& rank : ranks_) {
    for (size_t s = 0; s < kNumStreams; ++s) {
      if (rank.streams[s].pipe && consoles_[s].backlog() < kMaxBacklog) {
        polls.push_back({rank.streams[s].pipe.get(), POLLIN, 0});
        sources.emplace_back(&rank, s);
      }
    }
  }
  if (::poll(polls.data(), polls.size(), -1) < 0) {
    return;  // EINTR
  }
  if (polls[0].revents != 0) {
    read_leader();
  }
  for (size_t s = 0; s < kNumStreams; ++s) {
    if (polls[2 + s].revents != 0) {
      consoles_[s].write_some();
    }
  }
  for (size_t i = 0; i < sources.size(); ++i) {
    if (polls[first_source + i].revents != 0) {
      read_stream(*sources[i].first, sources[i].second);
    }
  }
  if (polls[1].revents != 0) {
    read_guardian();
  }
}

void Agent::read_leader() {
  for (;;) {
    const Received received = receive_message(leader_fd_);
    if (received.closed) {
      ::_exit(1);  // which the guardian sees, and kills the workers
    }
    if (!received.message) {
      return;
    }
    send_message(control_.get(), *received.message);
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
      message.text = rank.tail.text();
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
    if (n == 0) {
      end_stream(rank, stream);
    }
    return n < 0 && errno == EINTR;
  }
  const std::string_view bytes(buffer, static_cast<size_t>(n));
  from.log.write(bytes);
  from.splitter.feed(bytes, [&](std::string_view line) { take_line(rank, stream, line); });
  if (consoles_[stream].closed() && !from.log.is_open()) {
    // Nobody reads: the worker learns it as it would without us, by SIGPIPE.
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
  rank.streams[stream].splitter.finish(
      [&](std::string_view line) { take_line(rank, stream, line); });
  rank.streams[stream].pipe.reset();
}

void Agent::take_line(Rank& rank, size_t stream, std::string_view line) {
  rank.tail.add(line);
  consoles_[stream].add(rank.streams[stream].prefix, line);
}

void Agent::reap_guardian() {
  int status = 0;
  while (::waitpid(guardian_, &status, 0) < 0 && errno == EINTR) {
  }
  const ExitStatus end = ExitStatus::from_wait(status);
  if (!end.ok()) {
    kill_descendants(Deadline::never());
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
  for (Console& console : consoles_) {
    while (console.backlog() > 0) {
      pollfd polls[2] = {{console.fd(), POLLOUT, 0}, {leader_fd_, POLLIN, 0}};
      ::poll(polls, 2, -1);
      if (polls[1].revents != 0) {
        read_leader();
      }
      if (polls[0].revents != 0) {
        console.write_some();
      }
    }
  }
}

}  // namespace lockstep
