#pragma once

// Finds a good size of buckets in the first steps.

#include <chrono>
#include <cstdint>
#include <vector>

#include <lockstep/comm/group.h>

namespace lockstep::ddp {

// Tries each candidate for a few steps and keeps the one whose fastest step, on the slowest rank,
// was shortest. Only sizes that cut the model differently are tried.
class BucketTuner {
 public:
  explicit BucketTuner(int64_t gradient_bytes);

  bool is_done() const { return candidates_.empty() || next_ >= candidates_.size(); }
  // The size to use in the next step.
  int64_t bucket_bytes() const;
  // Collective, once per synchronised step until is_done(). True: bucket_bytes() has changed.
  bool record(Group& group, std::chrono::nanoseconds backward);

 private:
  struct Candidate {
    int64_t bucket_bytes = 0;
    double best_s = 0;
  };
  std::vector<Candidate> candidates_;
  size_t next_ = 0;
  int steps_of_candidate_ = 0;
  int64_t chosen_ = 0;
};

}  // namespace lockstep::ddp
