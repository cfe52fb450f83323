#pragma once

// The elements of a tensor in row-major order, whatever its strides, in pieces of bounded size.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/byte_source.h"
#include "formats/tensor_info.h"

namespace lockstep::formats {

class TensorReader {
 public:
  // Elements in a piece at most; pieces of tensors of one shape end at the same elements.
  static constexpr uint64_t kWindowElements = 1u << 20;

  // Both must outlive this.
  TensorReader(const base::ByteSource& source, const TensorInfo& tensor);

  // The next piece, valid until the next call; empty at the end. Throws IoError.
  std::span<const std::byte> next();

 private:
  // A dimension of a piece: how far apart its elements are in the file and in the piece.
  struct Axis {
    uint64_t size = 1;
    uint64_t from = 0;
    uint64_t to = 0;
  };

  std::span<const std::byte> next_contiguous();
  void gather(uint64_t first, std::vector<Axis> axes);
  void copy_spaced(std::span<const Axis> axes, const std::byte* from, std::byte* to) const;
  void copy_runs(std::span<const Axis> axes, uint64_t from, std::byte* to);

  const base::ByteSource& source_;
  const TensorInfo& tensor_;
  uint64_t element_bytes_;
  uint64_t num_elements_;
  uint64_t next_ = 0;        // element
  size_t split_ = 0;         // the dimension that pieces are cut along
  uint64_t inner_size_ = 1;  // elements in one step of it
  std::vector<std::byte> piece_;
  std::vector<std::byte> buffer_;
};

}  // namespace lockstep::formats
