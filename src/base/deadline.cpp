#include "base/deadline.h"

#include <climits>

#include <fmt/format.h>

namespace lockstep::base {

Deadline Deadline::after(std::chrono::nanoseconds duration) {
  const auto now = Clock::now();
  if (duration > Clock::time_point::max() - now) {
    return never();
  }
  return Deadline(now + duration);
}

std::chrono::nanoseconds Deadline::remaining() const {
  if (is_never()) {
    return std::chrono::nanoseconds::max();
  }
  const auto left = when_ - Clock::now();
  return left > left.zero() ? left : std::chrono::nanoseconds::zero();
}

int Deadline::poll_ms() const {
  if (is_never()) {
    return -1;
  }
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(remaining()).count();
  return ms > INT_MAX ? INT_MAX : static_cast<int>(ms);
}

std::string to_text(std::chrono::nanoseconds duration) {
  const double seconds = std::chrono::duration<double>(duration).count();
  return seconds < 1.0 ? fmt::format("{:.3g} ms", seconds * 1e3) : fmt::format("{:.4g} s", seconds);
}

}  // namespace lockstep::base
