#include "ddp/bucket_plan.h"

#include <algorithm>
#include <map>

namespace lockstep::ddp {
namespace {

struct OpenBucket {
  std::vector<size_t> gradients;
  int64_t bytes = 0;
  size_t last_place = 0;  // in the order: when the bucket is full
};

}  // namespace

std::vector<std::vector<size_t>> plan_buckets(const std::vector<GradientSize>& sizes,
                                              const std::vector<size_t>& order,
                                              const BucketLimits& limits) {
  std::vector<OpenBucket> closed;
  std::map<c10::ScalarType, OpenBucket> open;
  bool is_first = true;
  const auto close = [&](OpenBucket& bucket) {
    closed.push_back(std::move(bucket));
    bucket = {};
    is_first = false;
  };
  for (size_t place = 0; place < order.size(); ++place) {
    const GradientSize& gradient = sizes[order[place]];
    if (gradient.bytes >= limits.alone_bytes) {
      closed.push_back({.gradients = {order[place]}, .bytes = gradient.bytes, .last_place = place});
      continue;
    }
    const int64_t limit =
        is_first ? std::min(limits.first_bucket_bytes, limits.bucket_bytes) : limits.bucket_bytes;
    OpenBucket& bucket = open[gradient.type];
    if (!bucket.gradients.empty() && bucket.bytes + gradient.bytes > limit) {
      close(bucket);
    }
    bucket.gradients.push_back(order[place]);
    bucket.bytes += gradient.bytes;
    bucket.last_place = place;
  }
  for (auto& [type, bucket] : open) {
    if (!bucket.gradients.empty()) {
      close(bucket);
    }
  }
  std::sort(closed.begin(), closed.end(),
            [](const auto& a, const auto& b) { return a.last_place < b.last_place; });
  std::vector<std::vector<size_t>> buckets;
  for (OpenBucket& bucket : closed) {
    buckets.push_back(std::move(bucket.gradients));
  }
  return buckets;
}

}  // namespace lockstep::ddp
