#pragma once

// A mutex that can be waited for until a deadline, for std::unique_lock. Not std::timed_mutex:
// GCC's ThreadSanitizer does not know how that one is locked by the steady clock, and reports each
// of its unlocks.

#include <chrono>
#include <condition_variable>
#include <mutex>

namespace lockstep::base {

class TimedLock {
 public:
  void lock() {
    std::unique_lock lock(mutex_);
    freed_.wait(lock, [this] { return !is_taken_; });
    is_taken_ = true;
  }

  bool try_lock_until(std::chrono::steady_clock::time_point when) {
    std::unique_lock lock(mutex_);
    if (!freed_.wait_until(lock, when, [this] { return !is_taken_; })) {
      return false;
    }
    is_taken_ = true;
    return true;
  }

  void unlock() {
    const std::lock_guard lock(mutex_);
    is_taken_ = false;
    freed_.notify_one();
  }

 private:
  std::mutex mutex_;  // guards is_taken_
  std::condition_variable freed_;
  bool is_taken_ = false;
};

}  // namespace lockstep::base
