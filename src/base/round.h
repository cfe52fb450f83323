#pragma once

namespace lockstep::base {

// The least multiple of `unit` that is not below `value`; both positive integers.
template <typename Integer>
constexpr Integer rounded_up(Integer value, Integer unit) {
  return (value + unit - 1) / unit * unit;
}

}  // namespace lockstep::base
