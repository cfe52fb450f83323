#include "shm/kernels.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

namespace lockstep::shm {
namespace {

using Bytes = std::vector<uint8_t>;

constexpr size_t kMaxCount = 5000;
constexpr size_t kCounts[] = {0, 1, 7, 63, 64, 65, 1001, kMaxCount};
constexpr int kNumSources[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17};
constexpr size_t kGuard = 8;  // elements after the last, which must stay as they are

// ---- the oracle's types: by tables and doubles, where the kernels shift bits ----

template <typename To, typename From>
To bits_of(From value) {
  static_assert(sizeof(To) == sizeof(From));
  To bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

template <typename Number, typename Bits>
struct Plain {
  using Stored = Bits;
  using Value = Number;
  static Value decode(Stored bits) { return bits_of<Value>(bits); }
  static Stored encode(Value value) { return bits_of<Stored>(value); }
};

// A float of 16 bits, of which kMantissaBits are the mantissa. Values are kept as floats, all of
// which can hold.
template <int kMantissaBits, int kMinExponent>
struct Small {
  using Stored = uint16_t;
  using Value = float;
  static constexpr uint16_t kInfinity = 0x7FFF >> kMantissaBits << kMantissaBits;

  // Of all finite values >= 0, in rising order, and what would be next were there no infinity.
  static const std::vector<double>& values() {
    static const std::vector<double> table = [] {
      std::vector<double> result;
      const int per_binade = 1 << kMantissaBits;
      for (int bits = 0; bits <= kInfinity; ++bits) {
        const int exponent = bits / per_binade;
        const int mantissa = bits % per_binade + (exponent > 0 ? per_binade : 0);
        result.push_back(std::ldexp(mantissa, std::max(exponent, 1) - 1 + kMinExponent));
      }
      return result;
    }();
    return table;
  }

  static bool is_nan(Stored bits) { return (bits & 0x7FFF) > kInfinity; }

  static Value decode(Stored bits) {
    const uint16_t magnitude = bits & 0x7FFF;
    const double value = magnitude < kInfinity    ? values()[magnitude]
                         : magnitude == kInfinity ? std::numeric_limits<double>::infinity()
                                                  : std::numeric_limits<double>::quiet_NaN();
    return static_cast<float>(bits & 0x8000 ? -value : value);
  }

  // The nearest in the table; of two as near, the even one.
  static Stored encode(Value value) {
    if (std::isnan(value)) {
      return kInfinity | (1 << (kMantissaBits - 1));
    }
    const std::vector<double>& table = values();
    const double magnitude = std::min<double>(std::fabs(value), table.back());
    const auto above = std::lower_bound(table.begin(), table.end(), magnitude);
    int nearest = static_cast<int>(above - table.begin());
    if (nearest > 0) {
      const double to_above = *above - magnitude;
      const double to_below = magnitude - *(above - 1);
      nearest -= to_below < to_above || (to_below == to_above && nearest % 2 == 1) ? 1 : 0;
    }
    return static_cast<Stored>(nearest | (std::signbit(value) ? 0x8000 : 0));
  }
};

using F32 = Plain<float, uint32_t>;
using F64 = Plain<double, uint64_t>;
using F16 = Small<10, -24>;
using BF16 = Small<7, -133>;
using I8 = Plain<int8_t, uint8_t>;
using U8 = Plain<uint8_t, uint8_t>;
using I32 = Plain<int32_t, uint32_t>;
using I64 = Plain<int64_t, uint64_t>;

// Calls body(Type{}) with the oracle's type for `type`.
template <typename Body>
auto with_type(DataType type, Body&& body) {
  // clang-format off
  switch (type) {
    case DataType::Float32: return body(F32{});
    case DataType::Float64: return body(F64{});
    case DataType::Float16: return body(F16{});
    case DataType::BFloat16: return body(BF16{});
    case DataType::Int8: return body(I8{});
    case DataType::Int32: return body(I32{});
    case DataType::Int64: return body(I64{});
    default: return body(U8{});
  }
  // clang-format on
}

template <typename T>
T element(const Bytes& bytes, size_t index) {
  T value;
  std::memcpy(&value, bytes.data() + index * sizeof(T), sizeof(T));
  return value;
}

// ---- the oracle's arithmetic ----

template <typename Value>
Value combine(Value a, Value b, Reduction reduction) {
  if constexpr (std::is_integral_v<Value>) {
    using Unsigned = std::make_unsigned_t<Value>;
    const uint64_t wide_a = static_cast<Unsigned>(a);
    const uint64_t wide_b = static_cast<Unsigned>(b);
    switch (reduction) {
      case Reduction::Sum:
        return static_cast<Value>(wide_a + wide_b);
      case Reduction::Product:
        return static_cast<Value>(wide_a * wide_b);
      case Reduction::BitAnd:
        return static_cast<Value>(wide_a & wide_b);
      case Reduction::BitOr:
        return static_cast<Value>(wide_a | wide_b);
      default:
        return reduction == Reduction::Min ? std::min(a, b) : std::max(a, b);
    }
  } else {
    if (reduction == Reduction::Min || reduction == Reduction::Max) {
      if (std::isnan(a) || std::isnan(b)) {
        return std::numeric_limits<Value>::quiet_NaN();
      }
      return reduction == Reduction::Min ? std::min(a, b) : std::max(a, b);
    }
    return reduction == Reduction::Product ? a * b : a + b;
  }
}

template <typename Value>
Value tree(const std::vector<Value>& leaves, size_t first, size_t n, Reduction reduction) {
  if (n == 1) {
    return leaves[first];
  }
  size_t left = 1;
  while (left * 2 < n) {
    left *= 2;
  }
  return combine(tree(leaves, first, left, reduction),
                 tree(leaves, first + left, n - left, reduction), reduction);
}

Bytes expected(const KernelKey& key, const std::vector<Bytes>& sources, int divisor) {
  if (sources.size() == 1 && key.from == key.to && key.reduction != Reduction::Average) {
    return sources[0];
  }
  const size_t count = sources[0].size() / element_bytes(key.from);
  Bytes result(count * element_bytes(key.to));
  with_type(key.from, [&](auto from) {
    with_type(key.to, [&](auto to) {
      using From = decltype(from);
      using To = decltype(to);
      using Value = typename From::Value;
      if constexpr (std::is_same_v<Value, typename To::Value>) {
        std::vector<Value> leaves(sources.size());
        for (size_t i = 0; i < count; ++i) {
          for (size_t s = 0; s < sources.size(); ++s) {
            leaves[s] = From::decode(element<typename From::Stored>(sources[s], i));
          }
          Value value = tree(leaves, 0, leaves.size(), key.reduction);
          if constexpr (std::is_floating_point_v<Value>) {
            value =
                key.reduction == Reduction::Average ? value / static_cast<Value>(divisor) : value;
            value = std::isnan(value) ? std::numeric_limits<Value>::quiet_NaN() : value;
          }
          const typename To::Stored bits = To::encode(value);
          std::memcpy(result.data() + i * sizeof(bits), &bits, sizeof(bits));
        }
      }
    });
  });
  return result;
}

// ---- data ----

// A fourth is random bits (NaN, infinities, subnormals), the rest of a size at which sums round.
// One source has no NaN: their payloads survive some conversions, which have tests of their own.
Bytes random_elements(DataType type, size_t count, bool with_nan, std::mt19937_64& random) {
  Bytes bytes(count * element_bytes(type));
  with_type(type, [&](auto oracle) {
    using Type = decltype(oracle);
    using Stored = typename Type::Stored;
    for (size_t i = 0; i < count; ++i) {
      const uint64_t word = random();
      auto bits = static_cast<Stored>(word);
      if constexpr (std::is_floating_point_v<typename Type::Value>) {
        const bool nan = std::isnan(Type::decode(bits));
        if (word >> 62 != 0 || (nan && !with_nan)) {
          const int64_t mantissa = static_cast<int64_t>(word >> 8 & 0xFFFFFF) - 0x800000;
          const auto exponent = static_cast<int>(word >> 32 & 7);
          bits = Type::encode(static_cast<float>(std::ldexp(mantissa, exponent - 24)));
        }
      }
      bits = type == DataType::Bool ? static_cast<Stored>(bits & 1) : bits;
      std::memcpy(bytes.data() + i * sizeof(bits), &bits, sizeof(bits));
    }
  });
  return bytes;
}

std::vector<Bytes> random_sources(const KernelKey& key, int n, size_t count) {
  std::mt19937_64 random(static_cast<unsigned>(n) * 1000 + static_cast<unsigned>(key.from));
  std::vector<Bytes> sources(n);
  for (Bytes& source : sources) {
    source = random_elements(key.from, count, n > 1, random);
  }
  return sources;
}

std::vector<KernelKey> all_keys() {
  std::vector<KernelKey> keys;
  for (auto type : {DataType::Float32, DataType::Float64, DataType::Float16, DataType::BFloat16}) {
    for (auto reduction :
         {Reduction::Sum, Reduction::Average, Reduction::Min, Reduction::Max, Reduction::Product}) {
      keys.push_back({type, type, reduction});
    }
  }
  for (auto type : {DataType::Int8, DataType::UInt8, DataType::Int32, DataType::Int64}) {
    for (auto reduction : {Reduction::Sum, Reduction::Min, Reduction::Max, Reduction::Product,
                           Reduction::BitAnd, Reduction::BitOr}) {
      keys.push_back({type, type, reduction});
    }
  }
  for (auto reduction : {Reduction::BitAnd, Reduction::BitOr}) {
    keys.push_back({DataType::Bool, DataType::Bool, reduction});
  }
  for (auto reduction : {Reduction::Sum, Reduction::Average}) {
    for (auto small : {DataType::Float16, DataType::BFloat16}) {
      keys.push_back({small, DataType::Float32, reduction});
      keys.push_back({DataType::Float32, small, reduction});
    }
  }
  return keys;
}

std::string describe(const KernelKey& key, const std::string& isa) {
  return fmt::format("{}, from type {} to {}, reduction {}", isa, static_cast<int>(key.from),
                     static_cast<int>(key.to), static_cast<int>(key.reduction));
}

// ---- running a kernel ----

struct Trial {
  KernelKey key;
  ReduceKernel kernel = nullptr;
  const std::vector<Bytes>* sources = nullptr;
  const Bytes* expected = nullptr;
  size_t offset = 0;  // in elements, of all pointers
  size_t count = 0;
  int divisor = 1;
};

// Elements [offset, offset + count) are as expected, and the others as they were in `before`.
bool is_result(const Trial& trial, const Bytes& result, const Bytes& before) {
  const size_t begin = trial.offset * element_bytes(trial.key.to);
  const size_t end = begin + trial.count * element_bytes(trial.key.to);
  const auto equal = [&](const Bytes& other, size_t from, size_t to) {
    return std::memcmp(result.data() + from, other.data() + from, to - from) == 0;
  };
  return equal(before, 0, begin) && equal(*trial.expected, begin, end) &&
         equal(before, end, result.size());
}

// Reduces to copies of the sources at `in_place`, which then are sources, and to `num_new` others.
void check(const Trial& trial, const std::vector<size_t>& in_place, size_t num_new) {
  const size_t bytes = (trial.offset + trial.count + kGuard) * element_bytes(trial.key.to);
  const Bytes untouched(bytes, 0xA5);
  std::vector<Bytes> results(num_new, untouched);
  for (const size_t s : in_place) {
    results.emplace_back((*trial.sources)[s].begin(), (*trial.sources)[s].begin() + bytes);
  }
  std::vector<const void*> from;
  std::vector<void*> to;
  from.reserve(trial.sources->size());
  to.reserve(results.size());
  for (const Bytes& source : *trial.sources) {
    from.push_back(source.data() + trial.offset * element_bytes(trial.key.from));
  }
  for (Bytes& result : results) {
    to.push_back(result.data() + trial.offset * element_bytes(trial.key.to));
  }
  for (size_t i = 0; i < in_place.size(); ++i) {
    from[in_place[i]] = to[num_new + i];
  }
  trial.kernel({.sources = from.data(),
                .num_sources = static_cast<int>(from.size()),
                .destinations = to.data(),
                .num_destinations = static_cast<int>(to.size()),
                .count = trial.count,
                .divisor = trial.divisor});
  for (size_t i = 0; i < results.size(); ++i) {
    const Bytes& before = i < num_new ? untouched : (*trial.sources)[in_place[i - num_new]];
    EXPECT_TRUE(is_result(trial, results[i], before))
        << "destination " << i << " of " << results.size() << ", sources " << from.size()
        << ", count " << trial.count << ", offset " << trial.offset;
  }
}

void check_all_ways(const Trial& trial) {
  std::vector<size_t> all(trial.sources->size());
  std::iota(all.begin(), all.end(), size_t{0});
  check(trial, {}, 1 + 2 * trial.offset);
  if (trial.key.from == trial.key.to) {
    check(trial, all, 0);
    check(trial, {all.back()}, 1);
  }
}

TEST(ReduceKernels, EveryIsaGivesTheBitsOfTheTree) {
  for (const KernelKey& key : all_keys()) {
    for (const int n : kNumSources) {
      const auto sources = random_sources(key, n, kMaxCount + 1 + kGuard);
      const int divisor = n % 2 == 0 ? n : n + 2;
      const Bytes results = expected(key, sources, divisor);
      for (const std::string& isa : available_isas()) {
        SCOPED_TRACE(describe(key, isa));
        for (const size_t count : kCounts) {
          Trial trial{key, find_kernel(key, isa), &sources, &results, 0, count, divisor};
          check_all_ways(trial);
          trial.offset = 1;
          check_all_ways(trial);
        }
        ASSERT_FALSE(HasFailure());
      }
    }
  }
}

// Kernels of pure bits, NaN with payloads included, and more sources than the stack has tiles for
// in one level.
TEST(ReduceKernels, IsasAgreeOnRandomBits) {
  std::mt19937_64 random(7);
  constexpr size_t kCount = 500;
  for (const KernelKey& key : all_keys()) {
    for (const int n : {1, 2, 5, 8, 33, 100}) {
      std::vector<Bytes> sources(n, Bytes(kCount * element_bytes(key.from)));
      std::vector<const void*> from;
      for (Bytes& source : sources) {
        std::generate(source.begin(), source.end(), std::ref(random));
        from.push_back(source.data());
      }
      Bytes first;
      for (const std::string& isa : available_isas()) {
        Bytes result(kCount * element_bytes(key.to));
        void* to = result.data();
        find_kernel(key, isa)({from.data(), n, &to, 1, kCount, 3});
        first = first.empty() ? result : first;
        EXPECT_EQ(result, first) << describe(key, isa) << ", sources " << n;
      }
    }
  }
}

// ---- conversions: one source, of another type ----

template <typename To, typename From>
std::vector<To> convert(DataType from, DataType to, const std::vector<From>& values,
                        const std::string& isa) {
  std::vector<To> result(values.size());
  const void* source = values.data();
  void* destination = result.data();
  find_kernel({from, to, Reduction::Sum}, isa)({&source, 1, &destination, 1, values.size(), 1});
  return result;
}

std::vector<uint16_t> all_small() {
  std::vector<uint16_t> all(1 << 16);
  std::iota(all.begin(), all.end(), uint16_t{0});
  return all;
}

template <typename Small>
void check_all_values(DataType type, const std::string& isa) {
  const std::vector<uint16_t> small = all_small();
  const auto wide = convert<uint32_t>(type, DataType::Float32, small, isa);
  const auto back = convert<uint16_t>(DataType::Float32, type, wide, isa);
  for (const uint16_t bits : small) {
    if (Small::is_nan(bits)) {
      ASSERT_TRUE(std::isnan(bits_of<float>(wide[bits]))) << isa << " " << bits;
      ASSERT_TRUE(Small::is_nan(back[bits])) << isa << " " << bits;
    } else {
      ASSERT_EQ(wide[bits], bits_of<uint32_t>(Small::decode(bits))) << isa << " " << bits;
      ASSERT_EQ(back[bits], bits) << isa;
    }
  }
}

TEST(ReduceKernels, AllSmallFloatsAreWidenedExactlyAndBack) {
  for (const std::string& isa : available_isas()) {
    check_all_values<F16>(DataType::Float16, isa);
    check_all_values<BF16>(DataType::BFloat16, isa);
  }
}

// Between every two neighbours: the middle, and what is nearest to it on both sides.
template <typename Small>
void check_rounding(DataType type, const std::string& isa) {
  std::vector<float> values;
  const std::vector<double>& table = Small::values();
  for (size_t i = 0; i + 1 < table.size(); ++i) {
    const auto middle = static_cast<float>((table[i] + table[i + 1]) / 2);
    for (const float value : {std::nextafter(middle, 0.0F), middle,
                              std::nextafter(middle, std::numeric_limits<float>::infinity())}) {
      values.push_back(value);
      values.push_back(-value);
    }
  }
  const float infinity = std::numeric_limits<float>::infinity();
  values.insert(values.end(),
                {std::numeric_limits<float>::max(), infinity, -infinity, 1e-45F, -0.0F});
  const auto rounded = convert<uint16_t>(DataType::Float32, type, values, isa);
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(rounded[i], Small::encode(values[i])) << isa << " " << values[i];
  }
}

TEST(ReduceKernels, RoundingIsToNearestEven) {
  for (const std::string& isa : available_isas()) {
    check_rounding<F16>(DataType::Float16, isa);
    check_rounding<BF16>(DataType::BFloat16, isa);
  }
}

TEST(ReduceKernels, KnownConversions) {
  const std::vector<float> values = {1.0F,     65504.0F, 65519.996F, 65520.0F,
                                     0x1p-24F, 0x1p-25F, 0x1.8p-25F};
  const std::vector<uint16_t> halves = {0x3C00, 0x7BFF, 0x7BFF, 0x7C00, 0x0001, 0x0000, 0x0001};
  // A NaN that signals, quiet ones, one whose payload would round up into the sign.
  const std::vector<uint32_t> nans = {0x7F800001, 0x7FC00000, 0xFFC02000, 0x7FFFFFFF, 0xFFFFFFFF};
  const std::vector<uint16_t> half_nans = {0x7E00, 0x7E00, 0xFE01, 0x7FFF, 0xFFFF};
  const std::vector<uint16_t> bfloat_nans(nans.size(), 0x7FC0);
  const std::vector<uint16_t> signaling = {0x7C01, 0xFC01, 0x7E03};
  const std::vector<uint32_t> quiet = {0x7FC02000, 0xFFC02000, 0x7FC06000};
  const auto f32 = DataType::Float32;
  const auto f16 = DataType::Float16;
  for (const std::string& isa : available_isas()) {
    EXPECT_EQ(convert<uint16_t>(f32, f16, values, isa), halves) << isa;
    EXPECT_EQ(convert<uint16_t>(f32, f16, nans, isa), half_nans) << isa;
    EXPECT_EQ(convert<uint16_t>(f32, DataType::BFloat16, nans, isa), bfloat_nans) << isa;
    EXPECT_EQ(convert<uint32_t>(f16, f32, signaling, isa), quiet) << isa;
  }
}

TEST(ReduceKernels, TheChosenIsaIsAvailable) {
  const std::vector<std::string> isas = available_isas();
  EXPECT_EQ(isas.front(), "baseline");
  EXPECT_NE(std::find(isas.begin(), isas.end(), chosen_isa()), isas.end());
  const KernelKey key{DataType::Float32, DataType::Float32, Reduction::Sum};
  EXPECT_EQ(find_kernel(key), find_kernel(key, chosen_isa()));
}

TEST(ReduceKernels, OtherPairsThrow) {
  const auto missing = [](DataType from, DataType to, Reduction reduction) {
    EXPECT_THROW(find_kernel({from, to, reduction}), InternalError);
  };
  missing(DataType::Float32, DataType::Float64, Reduction::Sum);
  missing(DataType::Float16, DataType::BFloat16, Reduction::Sum);
  missing(DataType::Float16, DataType::Float32, Reduction::Max);
  missing(DataType::Float32, DataType::Float32, Reduction::BitAnd);
  missing(DataType::Int32, DataType::Int32, Reduction::Average);
  missing(DataType::Bool, DataType::Bool, Reduction::Sum);
  EXPECT_THROW(find_kernel({}, "avx1024"), InternalError);
}

}  // namespace
}  // namespace lockstep::shm
