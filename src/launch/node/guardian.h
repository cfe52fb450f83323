#pragma once

// The parent of a node's workers. It starts them, reports how each ended, stops them when told to,
// and makes sure that no process is left, neither when all have ended nor when its agent is gone.

#include <sys/types.h>
#include <vector>

#include "base/deadline.h"
#include "base/unique_fd.h"
#include "launch/plan.h"

namespace lockstep::launch {

// A worker's ends of its pipes, or of its terminal.
struct WorkerStreams {
  base::UniqueFd in;  // empty: /dev/null
  base::UniqueFd out;
  base::UniqueFd err;
};

// Lives in a process of its own, without threads.
class Guardian {
 public:
  // `control_fd`: to the agent; end of file on it is the agent's death.
  Guardian(NodePlan plan, int control_fd) : plan_(std::move(plan)), control_fd_(control_fd) {}

  // Does everything; returns when no process is left. Problems are reported to the agent (Failed).
  int run(std::vector<WorkerStreams> streams);

 private:
  struct Worker {
    int rank = 0;
    pid_t pid = 0;
    base::UniqueFd pidfd;
    bool running = true;
    bool was_exiting = false;  // it was exiting before it was told to: a failure of its own
    bool group_gone = false;   // never signal its process group again: the number may be reused
  };

  void isolate();
  void enter_container();
  void open_events();
  void start_workers(std::vector<WorkerStreams> streams);
  void wait_for_events();
  void read_control();
  void worker_ended(Worker& worker);
  void reap_orphans();
  void stop(int signal);
  void ask_for_checkpoint();
  void signal_group(Worker& worker, int signal);
  void signal_groups(int signal);
  void signal_who_ignores(int signal);
  bool groups_are_empty();
  void kill_everyone();
  bool finished();
  int poll_ms() const;

  NodePlan plan_;
  const int control_fd_;
  base::UniqueFd epoll_;
  base::UniqueFd child_signals_;
  base::UniqueFd host_proc_;  // the host's /proc, if the workers see another
  std::vector<Worker> workers_;
  size_t num_running_ = 0;
  bool stopping_ = false;
  bool killing_ = false;
  base::Deadline kill_at_ = base::Deadline::never();
};

}  // namespace lockstep::launch
