#include "shm/oracle.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <type_traits>

namespace lockstep::shm::test {
namespace {

// ---- types: how a stored element becomes a value, and back ----

template <typename T>
struct Number {
  using Stored = T;
  using Value = T;
  static Value decode(Stored stored) { return stored; }
  static Stored encode(Value value) { return value; }
};

// A float with `kMantissaBits` bits behind the point and exponents from `kMinExponent`; normal
// values and zero only, which is all that the tests use.
template <int kMantissaBits, int kMinExponent>
struct ShortFloat {
  using Stored = uint16_t;
  using Value = float;
  static constexpr int kExponentBits = 15 - kMantissaBits;

  static Value decode(Stored stored) {
    const int exponent = (stored >> kMantissaBits) & ((1 << kExponentBits) - 1);
    const int mantissa = stored & ((1 << kMantissaBits) - 1);
    const int whole = exponent == 0 ? mantissa : mantissa + (1 << kMantissaBits);
    const float size = std::ldexp(static_cast<float>(whole),
                                  std::max(exponent - 1, 0) + kMinExponent - kMantissaBits);
    return (stored & 0x8000) != 0 ? -size : size;
  }

  static Stored encode(Value value) {
    if (value == 0) {
      return std::signbit(value) ? 0x8000 : 0;
    }
    const int exponent = std::max(std::ilogb(value), kMinExponent);
    // To the nearest, ties to even: the rounding mode of nearbyint.
    const float units = std::nearbyint(std::ldexp(std::fabs(value), kMantissaBits - exponent));
    // A carry into the exponent is what adding does by itself; so is the hidden bit.
    const int bits = ((exponent - kMinExponent) << kMantissaBits) + static_cast<int>(units);
    return static_cast<Stored>(bits | (std::signbit(value) ? 0x8000 : 0));
  }
};
using Half = ShortFloat<10, -14>;
using BFloat = ShortFloat<7, -126>;

// Calls body(Number<...>()) for the type.
template <typename Body>
void with_number(DataType type, Body body) {
  switch (type) {
    case DataType::Float32:
      return body(Number<float>());
    case DataType::Float64:
      return body(Number<double>());
    case DataType::Float16:
      return body(Half());
    case DataType::BFloat16:
      return body(BFloat());
    case DataType::Int8:
      return body(Number<int8_t>());
    case DataType::UInt8:
    case DataType::Bool:
      return body(Number<uint8_t>());
    case DataType::Int32:
      return body(Number<int32_t>());
    case DataType::Int64:
      return body(Number<int64_t>());
  }
}

// ---- reductions ----

template <typename Value>
Value combine(Reduction reduction, Value a, Value b) {
  if (reduction == Reduction::Min || reduction == Reduction::Max) {
    return reduction == Reduction::Min ? std::min(a, b) : std::max(a, b);
  }
  if constexpr (std::is_floating_point_v<Value>) {
    return reduction == Reduction::Product ? a * b : a + b;
  } else {  // wraps around
    const auto x = static_cast<uint64_t>(a);
    const auto y = static_cast<uint64_t>(b);
    switch (reduction) {
      case Reduction::Product:
        return static_cast<Value>(x * y);
      case Reduction::BitAnd:
        return static_cast<Value>(x & y);
      case Reduction::BitOr:
        return static_cast<Value>(x | y);
      default:
        return static_cast<Value>(x + y);
    }
  }
}

template <typename Value>
Value tree(Reduction reduction, const Value* values, unsigned count) {
  if (count == 1) {
    return values[0];
  }
  const unsigned left = std::bit_floor(count - 1);
  return combine(reduction, tree(reduction, values, left),
                 tree(reduction, values + left, count - left));
}

template <typename Number>
typename Number::Stored random_element(DataType type, uint64_t random) {
  using Value = typename Number::Value;
  if (type == DataType::Bool) {
    return static_cast<typename Number::Stored>(random & 1);
  }
  if constexpr (std::is_floating_point_v<Value>) {
    // In [-2, 2): sums round, products of 8 neither overflow nor vanish.
    const double unit = static_cast<double>(random >> 11) / static_cast<double>(1ULL << 53);
    return Number::encode(static_cast<Value>(4 * unit - 2));
  } else {
    return static_cast<Value>(random);
  }
}

}  // namespace

uint64_t scramble(uint64_t key) {  // splitmix64
  key += 0x9e3779b97f4a7c15;
  key = (key ^ (key >> 30)) * 0xbf58476d1ce4e5b9;
  key = (key ^ (key >> 27)) * 0x94d049bb133111eb;
  return key ^ (key >> 31);
}

Oracle::Oracle(Options options) : options_(options) {
  options_.bytes -= options_.bytes % element_bytes(options_.type);
  with_number(options_.type, [this](auto number) {
    using N = decltype(number);
    for (int rank = 0; rank < options_.num_ranks; ++rank) {
      Bytes& bytes = inputs_.emplace_back(options_.bytes);
      auto* elements = reinterpret_cast<typename N::Stored*>(bytes.data());
      const uint64_t key = scramble(options_.seed * 1000 + static_cast<uint64_t>(rank));
      for (size_t i = 0; i < options_.bytes / sizeof *elements; ++i) {
        elements[i] = random_element<N>(options_.type, scramble(key + i));
      }
    }
  });
}

void Oracle::prepare(Reduction reduction) {
  Bytes& result = reduced_[reduction];
  if (!result.empty()) {
    return;
  }
  result.resize(options_.bytes);
  with_number(options_.type, [&](auto number) {
    using N = decltype(number);
    using Stored = typename N::Stored;
    auto* to = reinterpret_cast<Stored*>(result.data());
    std::vector<typename N::Value> values(inputs_.size());
    for (size_t i = 0; i < options_.bytes / sizeof(Stored); ++i) {
      for (size_t rank = 0; rank < inputs_.size(); ++rank) {
        values[rank] = N::decode(reinterpret_cast<const Stored*>(inputs_[rank].data())[i]);
      }
      auto value = tree(reduction, values.data(), static_cast<unsigned>(values.size()));
      if (reduction == Reduction::Average) {
        value /= static_cast<typename N::Value>(options_.num_ranks);
      }
      to[i] = N::encode(value);
    }
  });
}

}  // namespace lockstep::shm::test
