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
// Under another launcher, or none, only StopSignals ask.

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
  bool is_end_answered_ = false;
};

// While one lives, the first SIGINT or SIGTERM to this process asks all ranks to save and end, as
// the launcher does, and the second ends this process at once. A request of the launcher counts as
// the first. For programs: a library must not handle signals unasked.
//
//   lockstep::StopSignals signals("stopping after this step; a second signal stops now\n");
//   train();                                        // with a JobRequests inside
//   if (signals.received() != 0) return 128 + signals.received();
//
// A SIGINT that was ignored before (a job in the background) stays so. At most one at a time.
class StopSignals {
 public:
  // `notice` is written to stderr at the first signal; it must outlive this.
  explicit StopSignals(const char* notice = "");
  ~StopSignals();  // puts back what was there
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  int received() const;  // the first signal; 0: none yet
};

}  // namespace lockstep
