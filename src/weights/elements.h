#pragma once

// A tensor's bytes in a file, and where its elements go in a tensor of any type and strides.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "formats/weight_file.h"

namespace lockstep::weights {

bool is_contiguous_in_file(const formats::TensorInfo& info);

// Bytes that come in rising order, cut anywhere, as whole elements, aligned as libtorch wants them.
class WholeElements {
 public:
  using Take = std::function<void(const std::byte* data, int64_t first, int64_t count)>;

  explicit WholeElements(size_t element_bytes) : element_bytes_(element_bytes) {}

  // `take` gets what `bytes` complete: `count` elements, from number `first` of the tensor on.
  void add(uint64_t offset, std::span<const std::byte> bytes, const Take& take);

 private:
  void take_aligned(uint64_t offset, std::span<const std::byte> bytes, const Take& take) const;

  size_t element_bytes_;
  std::vector<std::byte> cut_;  // the begin of an element whose end has not come yet
};

// A tensor of the file seen through its strides there, and the target, with dimensions by falling
// stride in the file: so the elements of a part of the file are few blocks of the target.
class Blocks {
 public:
  Blocks(const formats::TensorInfo& info, const at::Tensor& target);

  // `part` holds elements as they lie in the file, flat, of any type and on the target's device,
  // from element `first` of the tensor on. Copies by libtorch, on the current stream.
  void put(const at::Tensor& part, int64_t first);

 private:
  struct Part {
    at::Tensor elements;
    int64_t begin = 0, end = 0;
  };

  // `block` is what is left of the target when the first `dim` dimensions are chosen; its first
  // element lies at `base` in the file.
  void put(const at::Tensor& block, size_t dim, int64_t base);
  void copy(const at::Tensor& block, size_t dim, int64_t base) const;

  at::Tensor target_;
  std::vector<int64_t> strides_;  // in the file, in elements
  std::vector<int64_t> extents_;  // elements of the file that the dimensions from here on span
  Part part_;
};

}  // namespace lockstep::weights
