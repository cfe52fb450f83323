#include "launch/node/local_ranks.h"

#include <algorithm>
#include <cerrno>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "base/process/fork.h"
#include "launch/node/agent.h"
#include "launch/node/sweep.h"

namespace lockstep::launch {

namespace {

constexpr auto kAgentGrace =
    std::chrono::seconds(2);  // beyond the workers' own, then agents are killed
constexpr auto kSweepLimit = std::chrono::seconds(2);  // below what makes a host lost

// Agents and guardians survive the signals that a terminal sends to its whole process group: the
// leader decides what they mean.
void ignore_job_signals() {
  for (const int signal :
       {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGPIPE, SIGXFSZ, SIGTTIN, SIGTTOU}) {
    ::signal(signal, SIG_IGN);  // the last four are errors of read(2) and write(2) then, not an end
  }
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

}  // namespace

LocalRanks::LocalRanks(LocalRanksOptions options, std::vector<NodePlan> nodes)
    : options_(std::move(options)), nodes_(std::move(nodes)), spared_(living_descendants()) {
  try {
    for (const NodePlan& node : nodes_) {
      start_agent(node);
    }
  } catch (...) {
    agents_.clear();  // agents that were started must not outlive the attempt
    clean_up();
    throw;
  }
}

void LocalRanks::start_agent(const NodePlan& plan) {
  base::FdPair link = base::make_socket_pair(SOCK_SEQPACKET);
  const int agent_fd = link.write.get();
  const pid_t leader = ::getpid();
  const pid_t pid = base::fork_child([&] {
    base::die_with_parent(leader);
    base::close_all_except({agent_fd, options_.board->fd()});
    ignore_job_signals();
    return Agent(plan, agent_fd, *options_.board).run();
  });
  agents_.push_back({.node = plan.node, .pid = pid, .link = std::move(link.read)});
}

void LocalRanks::add_polls(std::vector<pollfd>& polls) const {
  for (const AgentLink& agent : agents_) {
    if (agent.link) {
      polls.push_back({agent.link.get(), POLLIN, 0});
    }
  }
}

void LocalRanks::serve() {
  for (AgentLink& agent : agents_) {
    if (agent.link) {
      read_agent(agent);
    }
  }
  if (kill_agents_at_.expired()) {
    kill_agents_at_ = base::Deadline::never();
    agents_killed_ = true;
    for (const AgentLink& agent : agents_) {
      if (agent.link) {
        ::kill(agent.pid, SIGKILL);  // stopped or stuck in a write; its guardian does the rest
      }
    }
  }
  const auto lives = [](const AgentLink& agent) { return static_cast<bool>(agent.link); };
  if (!is_gone_ && std::none_of(agents_.begin(), agents_.end(), lives)) {
    clean_up();
    kill_agents_at_ = base::Deadline::never();
    is_gone_ = true;
    const auto tell = options_.tell;  // what is told may put the next start in this one's place
    tell({.kind = MemberSays::Idle, .generation = options_.generation});
  }
}

void LocalRanks::read_agent(AgentLink& agent) {
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

void LocalRanks::take(AgentLink& agent, const Message& message) {
  if (message.kind == MessageKind::Failed) {
    agent.failed = true;
    report_failure(
        agent,
        nodes_.size() > 1 ? fmt::format("node {}: {}", agent.node, message.text) : message.text,
        {.code = 1});
    return;
  }
  if (message.kind == MessageKind::GuardianLost) {
    agent.failed = true;
    report_failure(
        agent,
        fmt::format("the guardian (pid {}) of node {} ended: {}; its ranks ended with it",
                    message.pid, agent.node, message.status.text()),
        message.status);
    return;
  }
  MemberMessage report{.generation = options_.generation,
                       .rank = message.rank,
                       .pid = message.pid,
                       .status = message.status};
  if (message.kind == MessageKind::Started) {
    report.kind = MemberSays::Started;
  } else if (message.kind == MessageKind::CannotStart) {
    report.kind = MemberSays::CannotStart;
  } else {
    report.kind = MemberSays::Ended;
    const auto noticed = base::Clock::time_point(std::chrono::nanoseconds(message.stamp_ns));
    report.age = base::Clock::now() - noticed;
    report.end = message.end;
    add_log(report);
  }
  options_.tell(report);
}

void LocalRanks::add_log(MemberMessage& report) const {
  for (const NodePlan& node : nodes_) {
    for (const WorkerPlan& worker : node.workers) {
      const bool has_out = stream_route(node.output, worker.local_rank, 0).to_file;
      const bool has_err = stream_route(node.output, worker.local_rank, 1).to_file;
      if (worker.rank == report.rank && (has_out || has_err)) {
        report.end.log_folder = worker.log_folder;
        report.end.is_log_whole = has_out && has_err;
      }
    }
  }
}

void LocalRanks::agent_gone(AgentLink& agent) {
  agent.link.reset();
  int status = 0;
  while (::waitpid(agent.pid, &status, 0) < 0 && errno == EINTR) {
  }
  const base::ExitStatus end = base::ExitStatus::from_wait(status);
  if (!end.ok() && !agent.failed && !agents_killed_) {
    report_failure(agent,
                   fmt::format("the agent (pid {}) of node {} ended: {}; its ranks end with it",
                               agent.pid, agent.node, end.text()),
                   end);
  }
}

void LocalRanks::report_failure(const AgentLink& agent, const std::string& why,
                                base::ExitStatus status) {
  const auto node = std::find_if(nodes_.begin(), nodes_.end(),
                                 [&](const NodePlan& plan) { return plan.node == agent.node; });
  options_.tell({.kind = MemberSays::Failed,
                 .generation = options_.generation,
                 .rank = node->workers.front().rank,
                 .status = status,
                 .text = why});
}

void LocalRanks::stop(int signal) {
  kill_agents_at_ = base::Deadline::after(options_.stop_grace + kAgentGrace);
  tell_agents(MessageKind::Stop, signal);
}

void LocalRanks::kill_now() {
  kill_agents_at_ = base::Deadline::after(kAgentGrace);
  tell_agents(MessageKind::Kill);
}

void LocalRanks::checkpoint() {
  tell_agents(MessageKind::Checkpoint);
}

void LocalRanks::hurry() {
  tell_agents(MessageKind::Hurry);
}

void LocalRanks::tell_agents(MessageKind kind, int signal) {
  for (const AgentLink& agent : agents_) {
    if (agent.link) {
      send_message(agent.link.get(), {.kind = kind, .status = {.signal = signal}});
    }
  }
}

// Guardians whose agents were killed are ours now. They end by themselves, but the leader must not
// end before them.
void LocalRanks::clean_up() {
  const std::vector<pid_t> left = kill_descendants(base::Deadline::after(kSweepLimit), spared_);
  if (!left.empty()) {
    options_.say(
        fmt::format("{} processes cannot be killed (pids {}): the kernel waits for a device or a "
                    "file system on their behalf",
                    left.size(), fmt::join(left, ", ")));
  }
}

}  // namespace lockstep::launch
