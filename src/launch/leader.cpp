#include "launch/leader.h"

#include <algorithm>
#include <cerrno>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "launch/agent.h"
#include "launch/fork.h"
#include "launch/sweep.h"

namespace lockstep {

namespace {

constexpr auto kAgentGrace =
    std::chrono::seconds(2);  // beyond the workers' own, then agents are killed
constexpr auto kSweepLimit = std::chrono::seconds(10);
constexpr int kStopSignals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};

// An agent and a guardian outlive what is sent to the terminal's whole process group: the leader
// decides.
void ignore_job_signals() {
  for (const int signal : kStopSignals) {
    ::signal(signal, SIG_IGN);
  }
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGXFSZ, SIG_IGN);  // a log file at the size limit is an error of write(2), not an end
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

}  // namespace

Leader::Leader(const LaunchOptions& options, std::vector<NodePlan> nodes)
    : options_(options), nodes_(std::move(nodes)), spared_(living_descendants()) {
  for (const NodePlan& node : nodes_) {
    for (const WorkerPlan& worker : node.workers) {
      ranks_.push_back({.rank = worker.rank,
                        .node = node.node,
                        .local_rank = worker.local_rank,
                        .log_folder = worker.log_folder});
    }
  }
}

void Leader::start_agents() {
  adopt_orphans();
  block_signals();
  UniqueFd lock;
  if (nodes_.size() > 1) {
    lock.reset(::memfd_create("lockstep-output-lock", MFD_CLOEXEC));
  }
  for (const NodePlan& node : nodes_) {
    start_agent(node, lock.get());
  }
}

void Leader::start_agent(const NodePlan& plan, int lock_fd) {
  FdPair link = make_socket_pair(SOCK_SEQPACKET);
  const int agent_fd = link.write.get();
  const pid_t leader = ::getpid();
  const pid_t pid = fork_child([&] {
    die_with_parent(leader);
    close_all_except({agent_fd, lock_fd});
    ignore_job_signals();
    return Agent(plan, agent_fd, lock_fd).run();
  });
  agents_.push_back({.node = plan.node, .pid = pid, .link = std::move(link.read)});
}

void Leader::block_signals() {
  ::signal(SIGCHLD,
           SIG_DFL);  // ignored, as some parents leave it, children would not be ours to wait for
  ::signal(SIGPIPE, SIG_IGN);
  sigset_t mask;
  ::sigemptyset(&mask);
  for (const int signal : kStopSignals) {
    struct sigaction action {};
    ::sigaction(signal, nullptr, &action);
    if (action.sa_handler != SIG_IGN) {  // nohup, or a shell's background job: it stays ignored
      ::sigaddset(&mask, signal);
    }
  }
  ::sigprocmask(SIG_BLOCK, &mask, nullptr);
  signals_.reset(::signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals_) {
    throw IoError("cannot make a signalfd: {}", errno_text(errno));
  }
}

Report Leader::wait() {
  const auto lives = [](const AgentLink& agent) { return static_cast<bool>(agent.link); };
  while (std::any_of(agents_.begin(), agents_.end(), lives)) {
    poll_once();
  }
  clean_up();
  return make_report(options_.name, ranks_, cause_);
}

void Leader::poll_once() {
  std::vector<pollfd> polls{{signals_.get(), POLLIN, 0}};
  for (const AgentLink& agent : agents_) {
    polls.push_back({agent.link ? agent.link.get() : -1, POLLIN, 0});
  }
  ::poll(polls.data(), polls.size(), kill_agents_at_.poll_ms());
  // Agents first: an end that came before a signal is the cause of what follows.
  for (size_t i = 0; i < agents_.size(); ++i) {
    if (polls[i + 1].revents != 0) {
      read_agent(agents_[i]);
    }
  }
  if (polls[0].revents != 0) {
    read_signals();
  }
  if (kill_agents_at_.expired()) {
    kill_agents_at_ = Deadline::never();
    agents_killed_ = true;
    for (const AgentLink& agent : agents_) {
      if (agent.link) {
        ::kill(agent.pid, SIGKILL);  // stopped or stuck in a write; its guardian does the rest
      }
    }
  }
}

void Leader::read_signals() {
  signalfd_siginfo info;
  while (::read(signals_.get(), &info, sizeof info) == sizeof info) {
    const int signal = static_cast<int>(info.ssi_signo);
    if (!stopping_) {
      cause_.signal = signal;
      say(fmt::format("{}: stopping {} ranks; they have {} to end{}", signal_name(signal),
                      ranks_.size(), to_text(options_.stop_grace),
                      signal == SIGINT ? " (Ctrl-C again kills them now)" : ""));
      stop();
    } else if (signal == SIGINT) {
      kill_now();
    }
  }
}

void Leader::read_agent(AgentLink& agent) {
  for (;;) {
    const Received received = receive_message(agent.link.get());
    if (received.closed) {
      agent_gone(agent);
      return;
    }
    if (!received.message) {
      return;
    }
    take(agent, *received.message);
  }
}

void Leader::take(AgentLink& agent, const Message& message) {
  if (message.kind == MessageKind::Failed) {
    agent.failed = true;
    break_job(
        nodes_.size() > 1 ? fmt::format("node {}: {}", agent.node, message.text) : message.text, 1);
    return;
  }
  if (message.kind == MessageKind::GuardianLost) {
    agent.failed = true;
    break_job(fmt::format("the guardian (pid {}) of node {} ended: {}; its ranks ended with it",
                          message.pid, agent.node, message.status.text()),
              message.status.shell_code());
    return;
  }
  RankRecord& rank = ranks_.at(static_cast<size_t>(message.rank));
  rank.pid = message.pid;
  if (message.kind == MessageKind::CannotStart && !stopping_) {
    const int error = message.status.code;
    cause_.cannot_start = cannot_start_text(options_.command.front(), error);
    cause_.cannot_start_code = error == ENOENT ? 127 : 126;
    kill_now();
  } else if (message.kind == MessageKind::Ended) {
    rank.ended = true;
    rank.status = message.status;
    rank.stopped = message.stopped;
    rank.stamp_ns = message.stamp_ns;
    rank.last_lines = message.text;
    if (rank.failed() && !stopping_) {
      stop();
    }
  }
}

void Leader::agent_gone(AgentLink& agent) {
  agent.link.reset();
  int status = 0;
  while (::waitpid(agent.pid, &status, 0) < 0 && errno == EINTR) {
  }
  const ExitStatus end = ExitStatus::from_wait(status);
  if (!end.ok() && !agent.failed && !agents_killed_) {
    break_job(fmt::format("the agent (pid {}) of node {} ended: {}; its ranks end with it",
                          agent.pid, agent.node, end.text()),
              end.shell_code());
  }
}

void Leader::break_job(const std::string& why, int code) {
  if (!stopping_) {
    cause_.broken = why;
    cause_.broken_code = code;
    stop();
  }
}

void Leader::stop() {
  stopping_ = true;
  kill_agents_at_ = Deadline::after(options_.stop_grace + kAgentGrace);
  tell_agents(MessageKind::Stop);
}

void Leader::kill_now() {
  stopping_ = true;
  kill_agents_at_ = Deadline::after(kAgentGrace);
  tell_agents(MessageKind::Kill);
}

void Leader::tell_agents(MessageKind kind) {
  for (const AgentLink& agent : agents_) {
    if (agent.link) {
      send_message(agent.link.get(), {.kind = kind});
    }
  }
}

void Leader::say(const std::string& sentence) const {
  const std::string line = fmt::format("{}: {}\n", options_.name, sentence);
  const ssize_t ignored = ::write(STDERR_FILENO, line.data(), line.size());
  static_cast<void>(ignored);  // there is nobody left to tell
}

// Agents that were killed leave their guardians to us; these end by themselves, but we do not go
// before.
void Leader::clean_up() {
  const std::vector<pid_t> left = kill_descendants(Deadline::after(kSweepLimit), spared_);
  if (!left.empty()) {
    say(
        fmt::format("{} processes cannot be killed (pids {}): the kernel waits for a device or a "
                    "file system on their behalf",
                    left.size(), fmt::join(left, ", ")));
  }
}

}  // namespace lockstep
