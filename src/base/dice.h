#pragma once

// Random numbers for pictures: from (seed, number), the same on every machine.

#include <cstddef>
#include <cstdint>

namespace lockstep::base {

// SplitMix64 (Steele, Lea and Flood, 2014). Tiny, and defined to the last bit, unlike the
// distributions of <random>, which each standard library draws in its own way.
class Dice {
 public:
  Dice(uint64_t seed, uint64_t number) : state_(mix(mix(seed + kStep) + number)) {}

  uint64_t bits() { return mix(state_ += kStep); }

  // In [low, high).
  float uniform(float low, float high) {
    return low + (high - low) * static_cast<float>(bits() >> 40) / static_cast<float>(1 << 24);
  }

  // In [0, n); n is small, so that the remainder's bias does not matter.
  size_t below(size_t n) { return static_cast<size_t>(bits() >> 32) % n; }

  bool coin() { return (bits() >> 63) != 0; }

  // Mean 0, standard deviation 1: four uniforms added up are bell-shaped enough for noise.
  float noise() {
    const uint64_t b = bits();
    const uint64_t sum = (b & 0xffff) + (b >> 16 & 0xffff) + (b >> 32 & 0xffff) + (b >> 48);
    return (static_cast<float>(sum) / 65536.0f - 2.0f) * 1.7320508f;
  }

  // Numbers that are near become numbers that have nothing in common.
  static uint64_t mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }

 private:
  static constexpr uint64_t kStep = 0x9e3779b97f4a7c15u;

  uint64_t state_;
};

}  // namespace lockstep::base
