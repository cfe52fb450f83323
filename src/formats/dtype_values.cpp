#include "formats/dtype_values.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include <lockstep/base/error.h>

namespace lockstep::formats {

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// What the largest exponent stands for.
enum class Largest {
  Special,    // infinity, NaN
  LastIsNan,  // numbers, only all ones is NaN
  Number,
};

struct Layout {
  int exponent_bits;
  int mantissa_bits;
  int bias;
  Largest largest;
  bool negative_zero_is_nan;
};

double decode(uint32_t bits, const Layout& layout) {
  const uint32_t mantissa_mask = (1u << layout.mantissa_bits) - 1;
  const uint32_t exponent_mask = (1u << layout.exponent_bits) - 1;
  const uint32_t mantissa = bits & mantissa_mask;
  const uint32_t exponent = bits >> layout.mantissa_bits & exponent_mask;
  const bool is_negative = bits >> (layout.mantissa_bits + layout.exponent_bits) != 0;
  if (layout.negative_zero_is_nan && is_negative && mantissa == 0 && exponent == 0) {
    return kNan;
  }
  double value = 0;
  if (exponent == exponent_mask && layout.largest == Largest::Special) {
    value = mantissa == 0 ? kInfinity : kNan;
  } else if (exponent == exponent_mask && mantissa == mantissa_mask &&
             layout.largest == Largest::LastIsNan) {
    value = kNan;
  } else if (exponent == 0) {
    value = std::ldexp(mantissa, 1 - layout.bias - layout.mantissa_bits);
  } else {
    value = std::ldexp(mantissa + mantissa_mask + 1,
                       static_cast<int>(exponent) - layout.bias - layout.mantissa_bits);
  }
  return is_negative ? -value : value;
}

constexpr Layout kHalf{5, 10, 15, Largest::Special, false};
constexpr Layout kE5M2{5, 2, 15, Largest::Special, false};
constexpr Layout kE4M3{4, 3, 7, Largest::LastIsNan, false};
constexpr Layout kE5M2Fnuz{5, 2, 16, Largest::Number, true};
constexpr Layout kE4M3Fnuz{4, 3, 8, Largest::Number, true};

template <typename Bits, typename Decode>
void append_all(std::span<const std::byte> bytes, std::vector<double>& values,
                const Decode& decoded) {
  for (size_t i = 0; i + sizeof(Bits) <= bytes.size(); i += sizeof(Bits)) {
    Bits bits;
    std::memcpy(&bits, bytes.data() + i, sizeof bits);
    values.push_back(decoded(bits));
  }
}

void append_small(const Layout& layout, std::span<const std::byte> bytes,
                  std::vector<double>& values) {
  append_all<uint8_t>(bytes, values, [&](uint8_t bits) { return decode(bits, layout); });
}

}  // namespace

bool is_float(DType dtype) {
  switch (dtype) {
    case DType::F8E5M2:
    case DType::F8E4M3:
    case DType::F8E8M0:
    case DType::F8E4M3Fnuz:
    case DType::F8E5M2Fnuz:
    case DType::F16:
    case DType::BF16:
    case DType::F32:
    case DType::F64:
    case DType::C32:
    case DType::C64:
    case DType::C128:
      return true;
    default:
      return false;
  }
}

void append_values(DType dtype, std::span<const std::byte> bytes, std::vector<double>& values) {
  switch (dtype) {
    case DType::F8E5M2:
      return append_small(kE5M2, bytes, values);
    case DType::F8E4M3:
      return append_small(kE4M3, bytes, values);
    case DType::F8E4M3Fnuz:
      return append_small(kE4M3Fnuz, bytes, values);
    case DType::F8E5M2Fnuz:
      return append_small(kE5M2Fnuz, bytes, values);
    case DType::F8E8M0:  // a power of two
      return append_all<uint8_t>(bytes, values, [](uint8_t bits) {
        return bits == 0xff ? kNan : std::ldexp(1.0, bits - 127);
      });
    case DType::F16:
    case DType::C32:
      return append_all<uint16_t>(bytes, values, [](uint16_t bits) { return decode(bits, kHalf); });
    case DType::BF16:
      return append_all<uint16_t>(bytes, values, [](uint16_t bits) {
        return double{std::bit_cast<float>(uint32_t{bits} << 16)};
      });
    case DType::F32:
    case DType::C64:
      return append_all<float>(bytes, values, [](float value) { return double{value}; });
    case DType::F64:
    case DType::C128:
      return append_all<double>(bytes, values, [](double value) { return value; });
    default:
      LOCKSTEP_CHECK(false, "{} is no float", name_of(dtype));
  }
}

}  // namespace lockstep::formats
