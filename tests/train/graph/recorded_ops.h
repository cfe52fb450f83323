#pragma once

// Graphs of the CPU: what a CUDA graph does, done with the operators of libtorch. While work is
// recorded, each operator below autograd is noted with its arguments; a replay calls them again, on
// the same tensors, and puts what they return where it was in the recording. So whoever forgets a
// fixed address, a number that changes or a seed gets other values, as on a GPU.
//
// As there, nothing of a recording is done: memory that was there before has its values again
// afterwards. What would wait for the device is refused.

#include <memory>

#include "device/graph.h"

namespace lockstep::testing_support {

// What happened so far.
struct GraphLog {
  int num_begun = 0;     // recordings
  int num_recorded = 0;  // that ended well
  int num_replayed = 0;
  int num_alive = 0;         // graphs
  size_t num_operators = 0;  // of the last recording
};

std::unique_ptr<device::Graphs> make_recorded_ops(std::shared_ptr<GraphLog> log);

}  // namespace lockstep::testing_support
