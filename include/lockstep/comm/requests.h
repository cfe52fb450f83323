#pragma once

// What the launcher asks of a running job. All ranks get the same answer at the same step.
//
// Example:
//   lockstep::JobRequests requests(group);
//   for (int64_t step = 0; step < num_steps; ++step) {
//     train(step);
//     const auto request = requests.at_step_boundary();
//     if (request != lockstep::JobRequest::None) save(step);
//     if (request == lockstep::JobRequest::CheckpointAndStop) break;
//   }
//
// `lockstep run` asks for a checkpoint when it receives SIGUSR1, and for a checkpoint and the end
// when it receives SIGTERM, which schedulers send before they take a node away. Ranks that have
// made a JobRequests then get --stop-grace to end by themselves; ranks without one are stopped at
// once. Under another launcher, or none, only StopSignals ask.

#include <memory>

#include <lockstep/comm/group.h>

namespace lockstep {

enum class JobRequest {
  None,
  Checkpoint,         // save the state and continue
  CheckpointAndStop,  // save the state and end
};

// Listens to the launcher. Make one per process, over a group of all ranks.
// Threads: one thread at a time. Requests arrive on the store's own thread.
class JobRequests {
 public:
  // Throws CommError if the launcher's store cannot be reached. It is not collective.
  explicit JobRequests(const Group& group);
  ~JobRequests();
  JobRequests(const JobRequests&) = delete;
  JobRequests& operator=(const JobRequests&) = delete;

  // Collective. Returns what any rank was asked for since the last call. The answer is the same on
  // all ranks, and each request is answered once. The cost is an all-reduce of eight bytes. Throws
  // what Group::all_reduce() throws.
  JobRequest at_step_boundary();

 private:
  struct Listener;
  Group group_;
  std::unique_ptr<Listener> listener_;  // null where no launcher asks
  int num_answered_ = 0;
  bool is_end_answered_ = false;
};

// While one exists, the first SIGINT or SIGTERM to this process asks all ranks to save and end, as
// the launcher does, and the second ends this process at once. A request of the launcher counts as
// the first. It is meant for programs, since a library must not handle signals without being asked.
//
// Example:
//   lockstep::StopSignals signals("stopping after this step; a second signal stops at once\n");
//   train_all();  // uses a JobRequests
//   if (signals.received() != 0) return 128 + signals.received();
//
// A SIGINT that was ignored before, as it is in a job in the background, stays ignored.
class StopSignals {
 public:
  // Installs the handlers. `notice` is written to standard error at the first signal and must
  // outlive this object. Throws UsageError if the process has a StopSignals already.
  explicit StopSignals(const char* notice = "");
  ~StopSignals();  // restores the handlers that were there before
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  int received() const;  // the first signal, or 0 if there was none
};

}  // namespace lockstep
