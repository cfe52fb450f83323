#include "formats/tensor_info.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace lockstep::formats {

std::optional<uint64_t> checked_add(uint64_t a, uint64_t b) {
  uint64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? std::nullopt : std::optional(sum);
}

std::optional<uint64_t> checked_multiply(uint64_t a, uint64_t b) {
  uint64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? std::nullopt : std::optional(product);
}

std::optional<uint64_t> checked_elements(std::span<const int64_t> shape) {
  uint64_t product = 1;
  bool is_empty = false;
  for (const int64_t size : shape) {
    is_empty |= size == 0;
    const auto next = checked_multiply(product, size == 0 ? 1 : static_cast<uint64_t>(size));
    if (size < 0 || !next || *next > INT64_MAX) {
      return std::nullopt;
    }
    product = *next;
  }
  return is_empty ? 0 : product;
}

std::optional<uint64_t> checked_bytes(DType dtype, std::span<const int64_t> shape) {
  const auto elements = checked_elements(shape);
  const auto bits =
      elements ? checked_multiply(*elements, static_cast<uint64_t>(bits_of(dtype))) : elements;
  return bits && *bits % 8 == 0 ? std::optional(*bits / 8) : std::nullopt;
}

std::vector<int64_t> contiguous_strides(std::span<const int64_t> shape) {
  std::vector<int64_t> strides(shape.size());
  int64_t stride = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= shape[i] == 0 ? 1 : shape[i];
  }
  return strides;
}

std::string to_string(DType dtype, std::span<const int64_t> shape) {
  return fmt::format("{} [{}]", name_of(dtype), fmt::join(shape, ", "));
}

}  // namespace lockstep::formats
