#pragma once

// Clocks and deadlines. Every wait in lockstep takes a Deadline, so that nested waits share one
// limit instead of each starting its own.

#include <chrono>
#include <string>

namespace lockstep::base {

using Clock = std::chrono::steady_clock;

// A point in time after which a wait gives up. A value type; Deadline::never() never expires.
class Deadline {
 public:
  static Deadline never() { return Deadline(Clock::time_point::max()); }
  static Deadline at(Clock::time_point when) { return Deadline(when); }

  // A negative duration is a deadline that has passed; a huge one (say, hours::max()) never does.
  static Deadline after(std::chrono::nanoseconds duration);

  bool is_never() const { return when_ == Clock::time_point::max(); }
  bool expired() const { return !is_never() && Clock::now() >= when_; }
  Clock::time_point when() const { return when_; }

  // What is left, never negative; nanoseconds::max() if there is no limit.
  std::chrono::nanoseconds remaining() const;

  // For poll(2): whole milliseconds, rounded up so that a wait never spins at the end; -1 if no
  // limit.
  int poll_ms() const;

  // The one that passes first.
  Deadline earlier(Deadline other) const {
    return Deadline(when_ < other.when_ ? when_ : other.when_);
  }

 private:
  explicit Deadline(Clock::time_point when) : when_(when) {}
  Clock::time_point when_;
};

// "1.5 s", "250 ms", "90 s": for messages.
std::string to_text(std::chrono::nanoseconds duration);

}  // namespace lockstep::base
