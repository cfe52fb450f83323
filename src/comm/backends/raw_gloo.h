#pragma once

// libtorch's own Gloo group as PyTorch uses it, without anything of ours around it: the peer that
// benchmarks measure beside us.

#include <chrono>
#include <string>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <lockstep/comm/store.h>

namespace lockstep::comm {

struct RawGlooOptions {
  std::string prefix =
      "raw/";    // of the keys by which the ranks find each other: used once per store
  int rank = 0;  // in [0, size)
  int size = 1;
  std::string address = "127.0.0.1";  // of this rank, reachable by the others
  std::chrono::milliseconds timeout = std::chrono::minutes(5);  // of connecting and of operations
};

// Collective: returns when all ranks are connected. Destroy it on all ranks together, and only when
// no operation is in flight: its destructor waits.
c10::intrusive_ptr<c10d::Backend> make_raw_gloo(const Store& store, const RawGlooOptions& options);

}  // namespace lockstep::comm
