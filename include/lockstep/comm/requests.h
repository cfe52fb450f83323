#pragma once

// What the launcher asks of a running job, answered by all ranks at the same step.
//
//   lockstep::JobRequests requests(group);
//   for (int64_t step = 0; step < num_steps; ++step) {
//     train(step);
//     const auto request = requests.at_step_boundary();
//     if (request != lockstep::JobRequest::None) save(step);
//     if (request == lockstep::JobRequest::CheckpointAndStop) break;
//   }
//
// `lockstep run` asks for a checkpoint when it gets SIGUSR1, and for a checkpoint and the end when
// it gets SIGTERM, as schedulers send it before they take a node away. Ranks that have made a
// JobRequests then have --stop-grace to end by themselves; without one they are stopped at once.
// Under another launcher nothing is ever asked.

#include <memory>

#include <lockstep/comm/group.h>

namespace lockstep {

enum class JobRequest {
  None,
  Checkpoint,         // save the state and go on
  CheckpointAndStop,  // save the state and end
};

// Make one per process, on a group of all ranks.
// Threads: not thread-safe.
class JobRequests {
 public:
  explicit JobRequests(const Group& group);
  ~JobRequests();
  JobRequests(const JobRequests&) = delete;
  JobRequests& operator=(const JobRequests&) = delete;

  // Collective: what any rank was asked for since the last call, the same answer on all of them,
  // and each request answered once. An all-reduce of eight bytes.
  JobRequest at_step_boundary();

 private:
  struct Listener;
  Group group_;
  std::unique_ptr<Listener> listener_;  // empty where no launcher asks
  int num_answered_ = 0;
};

}  // namespace lockstep
