#pragma once

// Tensors of every type that a file can hold, of awkward shapes and strides, and comparing bits.

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <lockstep/weights/save.h>

namespace lockstep::test {

inline constexpr at::ScalarType kEveryType[] = {
    at::kBool,          at::kByte,          at::kChar,   at::kShort,        at::kUInt16,
    at::kInt,           at::kUInt32,        at::kLong,   at::kUInt64,       at::kHalf,
    at::kBFloat16,      at::kFloat,         at::kDouble, at::kComplexFloat, at::kFloat8_e5m2,
    at::kFloat8_e4m3fn, at::kFloat8_e8m0fnu};

// Any bits, NaNs and infinities among them, that follow from the seed.
inline at::Tensor any_bits(at::IntArrayRef shape, at::ScalarType type, uint64_t seed) {
  at::Tensor tensor = at::empty(shape, type);
  auto* bytes = static_cast<uint8_t*>(tensor.mutable_data_ptr());
  uint64_t word = seed * 0x9e3779b97f4a7c15u + 1;
  for (size_t i = 0; i < tensor.nbytes(); i += sizeof(word)) {
    word = word * 6364136223846793005u + 1442695040888963407u;
    const uint64_t bits = (word ^ word >> 29) & (type == at::kBool ? 0x0101010101010101u : ~0ull);
    std::memcpy(bytes + i, &bits, std::min(sizeof(bits), tensor.nbytes() - i));
  }
  return tensor;
}

// On the CPU, with the same strides.
inline at::Tensor other_bits_like(const at::Tensor& tensor) {
  at::Tensor other = at::empty_like(tensor, at::TensorOptions(at::kCPU));
  std::memset(other.mutable_data_ptr(), tensor.scalar_type() == at::kBool ? 0 : 0x5a,
              other.nbytes());
  return other;
}

// Every type, a scalar, an empty one, transposed, channels last, a view into a larger tensor, and
// one that is several pinned buffers large, all with strides that stay on a device.
inline std::vector<NamedTensor> every_type_and_layout(uint64_t seed = 1) {
  std::vector<NamedTensor> tensors;
  for (const at::ScalarType type : kEveryType) {
    tensors.push_back({std::string("of.") + toString(type), any_bits({3, 331}, type, ++seed)});
  }
  tensors.push_back({"scalar", any_bits({}, at::kLong, ++seed)});
  tensors.push_back({"empty", at::empty({0, 3}, at::kHalf)});
  tensors.push_back({"turned", any_bits({517, 1031}, at::kBFloat16, ++seed).t()});
  tensors.push_back(
      {"channels.last", any_bits({33, 11, 9, 17}, at::kFloat, ++seed).permute({0, 3, 1, 2})});
  tensors.push_back({"view", any_bits({70'001}, at::kShort, ++seed).narrow(0, 1, 70'000)});
  tensors.push_back({"large", any_bits({(5 << 20) + 3}, at::kHalf, ++seed)});
  return tensors;
}

inline void expect_same_bits(const at::Tensor& found, const at::Tensor& wanted,
                             const std::string& what) {
  const at::Tensor a = found.detach().cpu().contiguous();
  const at::Tensor b = wanted.detach().cpu().contiguous();
  ASSERT_EQ(a.sizes(), b.sizes()) << what;
  ASSERT_EQ(a.scalar_type(), b.scalar_type()) << what;
  if (a.nbytes() > 0) {
    EXPECT_EQ(std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()), 0) << what;
  }
}

// Whether the result of converting `type` to `to` is defined by the value alone. Numbers that an
// integer has not are another one in libtorch's vectorised loops than in their last, short round.
inline bool is_defined(at::ScalarType type, at::ScalarType to) {
  return !at::isComplexType(type) && (at::isFloatingType(to) || !at::isFloatingType(type));
}

// As expect_same_bits(), but for the bits of a NaN, of which the same is true.
inline void expect_same_values(const at::Tensor& found, const at::Tensor& wanted,
                               const std::string& what) {
  const auto without_nan = [](const at::Tensor& tensor) {
    const at::Tensor copy = tensor.detach().cpu().contiguous();
    return copy.is_floating_point() ? copy.masked_fill(copy.isnan(), 3) : copy;
  };
  expect_same_bits(without_nan(found), without_nan(wanted), what);
  EXPECT_TRUE(found.detach().cpu().isnan().equal(wanted.detach().cpu().isnan())) << what;
}

}  // namespace lockstep::test
