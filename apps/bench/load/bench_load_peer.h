#pragma once

// The peer of `lockstep bench load`: a Python process beside each rank.

#include <cstdint>
#include <string>

#include "bench/load/bench_load_plan.h"
#include "bench/peer_process.h"

namespace lockstep {

class LoadPeer {
 public:
  // Starts Python and waits until it has imported torch. Throws IoError if it fails at anything
  // but that.
  LoadPeer(const LoadBenchPlan& plan, const std::string& path);

  bool is_present() const { return is_present_; }

  // Makes a model; returns when it is there.
  void prepare();

  struct Load {
    int64_t start_ns = 0;  // on the monotonic clock
    int64_t end_ns = 0;
    int64_t cpu_ns = 0;
    uint32_t crc = 0;  // of all parameters, in their order; 0 unless asked for
  };
  Load load(bool with_crc);

 private:
  PeerProcess process_;
  bool is_present_ = false;
};

}  // namespace lockstep
