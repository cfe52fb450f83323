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
  // Receives every report: Started, CannotStart, Ended, Failed and, at last, Idle.
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

  // Passes on the user's signal, and sends SIGKILL after the grace. 0: a rank has failed; SIGTERM.
  void stop(int signal = 0);
  void kill_now();    // SIGKILL
  void checkpoint();  // SIGUSR1 to the ranks that handle it
  void hurry();       // readers that do not read the output are not waited for any more

  bool is_gone() const { return is_gone_; }  // Idle has been reported

 private:
  struct AgentLink {
    int node = 0;
    pid_t pid = 0;
    base::UniqueFd link;  // empty once the agent is gone
    bool failed = false;  // it has reported the reason itself
  };

  void start_agent(const NodePlan& plan);
  void read_agent(AgentLink& agent);
  void take(AgentLink& agent, const Message& message);
  void agent_gone(AgentLink& agent);
  void report_failure(const AgentLink& agent, const std::string& why, base::ExitStatus status);
  void tell_agents(MessageKind kind, int signal = 0);
  void clean_up();
  void add_log(MemberMessage& report) const;  // of the report's rank

  const LocalRanksOptions options_;
  const std::vector<NodePlan> nodes_;
  const std::vector<pid_t> spared_;  // children that were there before, which must not be killed
  std::vector<AgentLink> agents_;
  bool agents_killed_ = false;
  bool is_gone_ = false;
  base::Deadline kill_agents_at_ = base::Deadline::never();
};

}  // namespace lockstep::launch
