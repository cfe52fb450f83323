#pragma once

// The process that a user starts: it forks the agents, hears from them, decides when the job is
// over and how it ended.

#include <sys/types.h>
#include <vector>

#include "base/deadline.h"
#include "base/unique_fd.h"
#include "launch/message.h"
#include "launch/plan.h"
#include "launch/report.h"

namespace lockstep {

class Leader {
 public:
  Leader(const LaunchOptions& options, std::vector<NodePlan> nodes);

  // Takes over the signals that end a job, then forks one agent per node. No thread may exist yet.
  void start_agents();

  // Until every process of the job is gone.
  Report wait();

 private:
  struct AgentLink {
    int node = 0;
    pid_t pid = 0;
    UniqueFd link;        // empty once the agent is gone
    bool failed = false;  // it has said itself why
  };

  void start_agent(const NodePlan& plan, int lock_fd);
  void block_signals();
  void poll_once();
  void read_signals();
  void read_agent(AgentLink& agent);
  void take(AgentLink& agent, const Message& message);
  void agent_gone(AgentLink& agent);
  void break_job(const std::string& why, int code);
  void stop();
  void kill_now();
  void tell_agents(MessageKind kind);
  void say(const std::string& sentence) const;
  void clean_up();

  const LaunchOptions& options_;
  const std::vector<NodePlan> nodes_;
  const std::vector<pid_t> spared_;  // children from before: not ours to kill
  std::vector<AgentLink> agents_;
  std::vector<RankRecord> ranks_;
  UniqueFd signals_;
  StopCause cause_;
  bool stopping_ = false;
  bool agents_killed_ = false;
  Deadline kill_agents_at_ = Deadline::never();
};

}  // namespace lockstep
