#include "base/store/store_session.h"

#include <lockstep/base/error.h>

namespace lockstep::base::store {

namespace {

// Told this often a peer keeps little, and is told little.
constexpr int64_t kMaxUntold = 16;
constexpr size_t kMaxBytesUntold = 64 * 1024;

}  // namespace

void Session::keep(const std::string& frame) {
  kept_.push_back(frame);
  kept_bytes_ += frame.size();
}

bool Session::take(size_t num_bytes) {
  ++num_received_;
  ++num_untold_;
  bytes_untold_ += num_bytes;
  if (num_untold_ < kMaxUntold && bytes_untold_ < kMaxBytesUntold) {
    return false;
  }
  num_untold_ = 0;
  bytes_untold_ = 0;
  return true;
}

void Session::confirm(int64_t num_frames) {
  const int64_t num_sent = num_confirmed_ + static_cast<int64_t>(kept_.size());
  if (num_frames < num_confirmed_ || num_frames > num_sent) {
    throw FormatError("it says that it has {} messages, and it has {} to {}", num_frames,
                      num_confirmed_, num_sent);
  }
  for (; num_confirmed_ < num_frames; ++num_confirmed_) {
    kept_bytes_ -= kept_.front().size();
    kept_.pop_front();
  }
}

std::string Session::unconfirmed() const {
  std::string frames;
  frames.reserve(kept_bytes_);
  for (const std::string& frame : kept_) {
    frames += frame;
  }
  return frames;
}

}  // namespace lockstep::base::store
