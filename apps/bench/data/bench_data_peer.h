#pragma once

// The peer of `lockstep bench data`: a Python process.

#include <cstdint>
#include <string>
#include <vector>

#include "bench/data/bench_data_plan.h"
#include "bench/peer_process.h"

namespace lockstep {

class DataPeer {
 public:
  // Starts Python and waits until it has read the folder once. Says on standard error why there is
  // no peer, if there is none though one is wanted.
  DataPeer(const DataBenchPlan& plan, const std::string& folder);

  bool is_present() const { return is_present_; }

  // Returns the first `count` pictures of the folder as the model sees them in an evaluation, one
  // after another: `num_values` floats in all. Throws IoError if it gives another number.
  std::vector<float> pixels(int64_t count, int64_t num_values);

  // Makes one pass over all pictures and returns its seconds. Throws IoError if it did not read
  // `count`.
  double read_all(int64_t count);

 private:
  PeerProcess process_;
  bool is_present_ = false;
};

}  // namespace lockstep
