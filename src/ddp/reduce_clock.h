#pragma once

// Measures for how long reductions were under way.

#include <algorithm>
#include <mutex>
#include <vector>

#include "base/deadline.h"

namespace lockstep::ddp {

// Threads: ended() on whichever thread finishes a reduction; all else on the one of backward.
class ReduceClock {
 public:
  void began(base::Clock::time_point when) {
    const std::lock_guard lock(mutex_);
    spans_.push_back({when, {}});
  }
  void ended(size_t index) {
    const base::Clock::time_point now = base::Clock::now();
    const std::lock_guard lock(mutex_);
    spans_[index].end = now;
  }

  // Reductions of one group run one after another: a span begins when the one before has ended.
  std::chrono::nanoseconds total() const {
    const std::lock_guard lock(mutex_);
    std::chrono::nanoseconds sum{0};
    base::Clock::time_point free{};
    for (const Span& span : spans_) {
      const base::Clock::time_point begin = std::max(span.begin, free);
      if (span.end > begin) {
        sum += span.end - begin;
        free = span.end;
      }
    }
    return sum;
  }

 private:
  struct Span {
    base::Clock::time_point begin;
    base::Clock::time_point end;
  };
  mutable std::mutex mutex_;
  std::vector<Span> spans_;
};

}  // namespace lockstep::ddp
