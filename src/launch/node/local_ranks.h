#pragma once

// The ranks of this host in one start of the job: one agent per node, watched and told what to do.

#include <functional>
#include <poll.h>
#include <sys/types.h>
#include <vector>

#include "base/console.h"
#include "base/deadline.h"
#include "base/unique_fd.h"
#include "launch/job/job_message.h"
#include "launch/node/message.h"
#include "launch/plan.h"

namespace lockstep::launch {

struct LocalRanksOptions {
  int64_t generation = 0;
  base::ConsoleBoard* board = nullptr;  // REQUIRED
  std::chrono::nanoseconds stop_grace{};
  // Where everything is reported: Started, CannotStart, Ended, Failed and, at last, Idle.
  std::function<void(const MemberMessage&)> tell;
  std::function<void(const std::string& sentence)> say;  // to the user
};

// Lives in a process without threads.
class LocalRanks {
 public:
  // Forks the agents.
  LocalRanks(LocalRanksOptions options, std::vector<NodePlan> nodes);

  // For the caller's poll loop: what to wait for, until when, and what to do then.
  void add_polls(std::vector<pollfd>& polls) const;
  base::Deadline next_timeout() const { return kill_agents_at_; }
  void serve();

  // The signal that the user sent, then SIGKILL after the grace. 0: a rank has failed; SIGTERM.
  void stop(int signal = 0);
  void kill_now();    // SIGKILL
  void checkpoint();  // SIGUSR1 to the ranks that handle it
  void hurry();       // whoever does not read their output is not waited for any more

  bool is_gone() const { return is_gone_; }  // Idle has been told

 private:
  struct AgentLink {
    int node = 0;
    pid_t pid = 0;
    base::UniqueFd link;  // empty once the agent is gone
    bool failed = false;  // it has said itself why
  };

  void start_agent(const NodePlan& plan);
  void read_agent(AgentLink& agent);
  void take(AgentLink& agent, const Message& message);
  void agent_gone(AgentLink& agent);
  void report_failure(const AgentLink& agent, const std::string& why, base::ExitStatus status);
  void tell_agents(MessageKind kind, int signal = 0);
  void clean_up();
  void add_log(MemberMessage& report) const;  // of its rank

  const LocalRanksOptions options_;
  const std::vector<NodePlan> nodes_;
  const std::vector<pid_t> spared_;  // children from before: not ours to kill
  std::vector<AgentLink> agents_;
  bool agents_killed_ = false;
  bool is_gone_ = false;
  base::Deadline kill_agents_at_ = base::Deadline::never();
};

}  // namespace lockstep::launch
