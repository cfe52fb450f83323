#include "bench/allreduce/bench_pattern.h"

#include <algorithm>
#include <cstring>

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <fmt/format.h>

#include <lockstep/base/error.h>

namespace lockstep {
namespace {

constexpr size_t kBlockBytes = 64;     // a multiple of the period in every type, and a cache line
constexpr size_t kSampleBytes = 4096;  // from one block that is looked at to the next

using Block = std::array<std::byte, kBlockBytes>;

template <typename T>
Block block_as(const BenchValues& values, size_t first) {
  std::array<T, kBlockBytes / sizeof(T)> elements;
  for (size_t i = 0; i < elements.size(); ++i) {
    elements[i] = static_cast<T>(static_cast<float>(values[(first + i) % kPatternPeriod]));
  }
  Block block;
  std::memcpy(block.data(), elements.data(), kBlockBytes);
  return block;
}

Block block_of(const BenchSpan& span, const BenchValues& values) {
  switch (span.type) {
    case at::kFloat:
      return block_as<float>(values, span.first);
    case at::kDouble:
      return block_as<double>(values, span.first);
    case at::kHalf:
      return block_as<c10::Half>(values, span.first);
    case at::kBFloat16:
      return block_as<c10::BFloat16>(values, span.first);
    default:
      throw InternalError("no pattern for {}", c10::toString(span.type));
  }
}

template <typename T>
double element_as(const std::byte* data) {
  T value;
  std::memcpy(&value, data, sizeof value);
  return static_cast<double>(value);
}

double element_of(const std::byte* data, at::ScalarType type) {
  switch (type) {
    case at::kDouble:
      return element_as<double>(data);
    case at::kHalf:
      return element_as<c10::Half>(data);
    case at::kBFloat16:
      return element_as<c10::BFloat16>(data);
    default:
      return element_as<float>(data);
  }
}

std::string describe(const BenchSpan& span, const BenchValues& values, size_t block_begin) {
  const size_t element = c10::elementSize(span.type);
  for (size_t at = block_begin; at < span.bytes; at += element) {
    const size_t index = span.first + at / element;
    const double found = element_of(span.data + at, span.type);
    if (found != values[index % kPatternPeriod]) {
      return fmt::format("element {} is {}, not {}", index, found, values[index % kPatternPeriod]);
    }
  }
  return "a zero has the wrong sign";
}

}  // namespace

BenchValues bench_values(int rank, uint64_t salt) {
  // Up to 3: the sum of 64 ranks is below 256, which bfloat16 still holds exactly.
  uint64_t mixed =
      (salt + 1) * 0x9E3779B97F4A7C15u + static_cast<uint64_t>(rank) * 0xD1B54A32D192ED03u;
  mixed ^= mixed >> 29;
  mixed *= 0xBF58476D1CE4E5B9u;
  mixed ^= mixed >> 32;
  BenchValues values;
  for (size_t i = 0; i < kPatternPeriod; ++i) {
    values[i] = static_cast<int>(mixed >> (2 * i) & 3);
  }
  return values;
}

BenchValues bench_sum(int num_ranks, uint64_t salt) {
  BenchValues sum{};
  for (int rank = 0; rank < num_ranks; ++rank) {
    const BenchValues values = bench_values(rank, salt);
    for (size_t i = 0; i < kPatternPeriod; ++i) {
      sum[i] += values[i];
    }
  }
  return sum;
}

void write_pattern(const BenchSpan& span, const BenchValues& values) {
  const Block block = block_of(span, values);
  size_t at = 0;
  for (; at + kBlockBytes <= span.bytes; at += kBlockBytes) {
    std::memcpy(span.data + at, block.data(), kBlockBytes);
  }
  std::memcpy(span.data + at, block.data(), span.bytes - at);
}

std::string find_mistake(const BenchSpan& span, const BenchValues& values, CheckExtent extent) {
  const Block block = block_of(span, values);
  const size_t stride = extent == CheckExtent::All ? kBlockBytes : kSampleBytes;
  const auto is_wrong = [&](size_t at) {
    return std::memcmp(span.data + at, block.data(), std::min(kBlockBytes, span.bytes - at)) != 0;
  };
  for (size_t at = 0; at < span.bytes; at += stride) {
    if (is_wrong(at)) {
      return describe(span, values, at);
    }
  }
  const size_t last = span.bytes == 0 ? 0 : (span.bytes - 1) / kBlockBytes * kBlockBytes;
  return is_wrong(last) ? describe(span, values, last) : "";
}

}  // namespace lockstep
