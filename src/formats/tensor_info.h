#pragma once

// What a weight file says about a tensor, once it has been checked.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/quoted.h"
#include "formats/dtype.h"

namespace lockstep::formats {

// libtorch's own limit.
inline constexpr size_t kMaxDims = 64;

struct TensorInfo {
  std::string name;
  DType dtype = DType::F32;
  std::vector<int64_t> shape;    // empty: a scalar
  std::vector<int64_t> strides;  // in elements, one per dimension; empty: contiguous, row-major
  uint64_t offset_bytes = 0;     // in the file: of the first element
  uint64_t size_bytes = 0;       // in the file: from the first element to the end of the last
  int64_t storage = -1;          // of torch files: which storage it lies in; tied tensors share one
};

// Sums and products that cannot wrap; nothing where the result does not fit.
std::optional<uint64_t> checked_add(uint64_t a, uint64_t b);
std::optional<uint64_t> checked_multiply(uint64_t a, uint64_t b);

// How many elements a shape has. Nothing for a negative dimension, or if the other dimensions of
// an empty tensor overflow: no program can use such a shape.
std::optional<uint64_t> checked_elements(std::span<const int64_t> shape);

// Bytes of a contiguous tensor. Nothing on overflow, or if a packed type ends inside a byte.
std::optional<uint64_t> checked_bytes(DType dtype, std::span<const int64_t> shape);

// Row-major, in elements.
std::vector<int64_t> contiguous_strides(std::span<const int64_t> shape);

// "F32 [2, 3]".
std::string to_string(DType dtype, std::span<const int64_t> shape);

}  // namespace lockstep::formats
