#pragma once

// What benchmarks write into their buffers and expect to find after an operation: small whole
// numbers, whose sums are exact in every type, in any order of summation.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include <c10/core/ScalarType.h>

namespace lockstep {

inline constexpr size_t kPatternPeriod = 8;  // elements after which the values repeat

// Element i of a buffer is values[i % kPatternPeriod].
using BenchValues = std::array<int, kPatternPeriod>;

// Returns what `rank` writes for the operation numbered `salt`: another number gives other values.
BenchValues bench_values(int rank, uint64_t salt);
BenchValues bench_sum(int num_ranks, uint64_t salt);

struct BenchSpan {
  std::byte* data = nullptr;
  size_t bytes = 0;
  at::ScalarType type = at::kFloat;
  size_t first = 0;  // number of the first element, where the span is part of a larger one
};

void write_pattern(const BenchSpan& span, const BenchValues& values);

enum class CheckExtent { All, Sample };  // Sample: one cache line per page, and the end

// Returns nothing if the span holds the values, else what is wrong: "element 5 is 3, not 4".
std::string find_mistake(const BenchSpan& span, const BenchValues& values, CheckExtent extent);

}  // namespace lockstep
