#include "ddp/bucket_tuner.h"

#include <algorithm>

#include <ATen/ops/full.h>

#include <lockstep/base/log.h>

namespace lockstep::ddp {
namespace {

constexpr int64_t kSizes[] = {1 << 20, 4 << 20, 10 << 20, 25 << 20, 100 << 20};
constexpr int kStepsEach = 4;  // the first with a new layout does not count

}  // namespace

BucketTuner::BucketTuner(int64_t gradient_bytes) {
  for (const int64_t size : kSizes) {
    candidates_.push_back({.bucket_bytes = size, .best_s = 1e30});
    if (size >= gradient_bytes) {
      break;
    }
  }
  chosen_ = candidates_.front().bucket_bytes;
}

int64_t BucketTuner::bucket_bytes() const {
  return is_done() ? chosen_ : candidates_[next_].bucket_bytes;
}

bool BucketTuner::record(Group& group, std::chrono::nanoseconds backward) {
  Candidate& candidate = candidates_[next_];
  if (steps_of_candidate_++ > 0) {
    const double seconds = std::chrono::duration<double>(backward).count();
    candidate.best_s = std::min(candidate.best_s, seconds);
  }
  if (steps_of_candidate_ < kStepsEach) {
    return false;
  }
  const at::Tensor slowest = at::full({1}, candidate.best_s, at::kDouble);
  group.all_reduce(slowest, {.op = ReduceOp::Max});
  candidate.best_s = slowest.item<double>();
  steps_of_candidate_ = 0;
  if (++next_ < candidates_.size()) {
    return true;
  }
  const auto best =
      std::min_element(candidates_.begin(), candidates_.end(),
                       [](const auto& a, const auto& b) { return a.best_s < b.best_s; });
  chosen_ = best->bucket_bytes;
  log::info("ddp", "buckets of {} MiB: fastest backward of {} sizes, {:.2f} ms", chosen_ >> 20,
            candidates_.size(), best->best_s * 1e3);
  return true;
}

}  // namespace lockstep::ddp
