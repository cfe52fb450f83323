#pragma once

// What one side of an agent's conversation remembers, so that it can go on over another connection:
// what the peer may not have received yet, and how much has come from it.

#include <cstdint>
#include <deque>
#include <string>

namespace lockstep::base::store {

class Session {
 public:
  // A frame on its way to the peer; it is kept until the peer says that it has it.
  void keep(const std::string& frame);
  size_t kept_bytes() const { return kept_bytes_; }

  // A frame of `num_bytes` has come. True if it is time to tell the peer how many have.
  bool take(size_t num_bytes);
  int64_t num_received() const { return num_received_; }

  // The peer has the first `num_frames` of all that were kept. Throws FormatError if there were not
  // as many, or if it had more before.
  void confirm(int64_t num_frames);

  // What the peer does not have, in order.
  std::string unconfirmed() const;

 private:
  std::deque<std::string> kept_;
  size_t kept_bytes_ = 0;
  int64_t num_confirmed_ = 0;
  int64_t num_received_ = 0;
  int64_t num_untold_ = 0;  // received since the peer was told
  size_t bytes_untold_ = 0;
};

}  // namespace lockstep::base::store
