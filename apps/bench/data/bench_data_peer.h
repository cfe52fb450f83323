#pragma once

// The peer of `lockstep bench data`: a Python process.

#include <cstdint>
#include <string>

#include "bench/peer_process.h"

namespace lockstep {

struct DataPeerOptions {
  std::string python;  // empty: none
  std::string script;  // bench/data_peer.py
  int num_workers = 2;
  int64_t batch_size = 32;
};

class DataPeer {
 public:
  // Starts Python and waits until it has read the folder once. Says on standard error why there is
  // no peer, if there is none though one is wanted.
  DataPeer(const DataPeerOptions& options, const std::string& folder);

  bool is_present() const { return is_present_; }

  // One pass over all pictures, in seconds. Throws IoError if it did not read `count`.
  double read_all(int64_t count);

 private:
  PeerProcess process_;
  bool is_present_ = false;
};

}  // namespace lockstep
