#include "formats/dtype_values.h"

#include <cmath>
#include <cstdint>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep {
namespace {

template <typename Bits>
std::vector<double> values_of(formats::DType dtype, const std::vector<Bits>& bits) {
  std::vector<double> values;
  formats::append_values(dtype, std::as_bytes(std::span(bits)), values);
  return values;
}

using testing::ElementsAre;
using testing::IsNan;

// The extremes of each type, as its specification lists them.
TEST(DTypeValues, AreExact) {
  EXPECT_THAT(
      values_of<uint16_t>(formats::DType::F16, {0x3c00, 0xc000, 0x7bff, 0x0001, 0x7c00, 0x7e00}),
      ElementsAre(1, -2, 65504, std::ldexp(1, -24), INFINITY, IsNan()));
  EXPECT_THAT(values_of<uint16_t>(formats::DType::BF16, {0x3f80, 0xc000, 0x0001, 0xff80, 0x7fc0}),
              ElementsAre(1, -2, std::ldexp(1, -133), -INFINITY, IsNan()));
  EXPECT_THAT(values_of<uint8_t>(formats::DType::F8E4M3, {0x38, 0xc0, 0x7e, 0x01, 0x7f, 0xff}),
              ElementsAre(1, -2, 448, std::ldexp(1, -9), IsNan(), IsNan()));
  EXPECT_THAT(values_of<uint8_t>(formats::DType::F8E5M2, {0x3c, 0xc0, 0x7b, 0x01, 0x7c, 0x7f}),
              ElementsAre(1, -2, 57344, std::ldexp(1, -16), INFINITY, IsNan()));
  EXPECT_THAT(values_of<uint8_t>(formats::DType::F8E4M3Fnuz, {0x40, 0xc8, 0x7f, 0x01, 0x80}),
              ElementsAre(1, -2, 240, std::ldexp(1, -10), IsNan()));
  EXPECT_THAT(values_of<uint8_t>(formats::DType::F8E5M2Fnuz, {0x40, 0xc4, 0x7f, 0x01, 0x80}),
              ElementsAre(1, -2, 57344, std::ldexp(1, -17), IsNan()));
  EXPECT_THAT(values_of<uint8_t>(formats::DType::F8E8M0, {127, 128, 0, 255}),
              ElementsAre(1, 2, std::ldexp(1, -127), IsNan()));
  EXPECT_THAT(values_of<float>(formats::DType::C64, {0.5f, -3.0f}), ElementsAre(0.5, -3));
  EXPECT_THAT(values_of<double>(formats::DType::F64, {0.1}), ElementsAre(0.1));
  EXPECT_TRUE(formats::is_float(formats::DType::C128));
  EXPECT_FALSE(formats::is_float(formats::DType::I64) || formats::is_float(formats::DType::Bool) ||
               formats::is_float(formats::DType::F4));
}

}  // namespace
}  // namespace lockstep
