#include "weights/elements.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include <ATen/core/grad_mode.h>

namespace lockstep::weights {

namespace {

constexpr size_t kAlignedBytes = 256 << 10;  // a multiple of every element's size

}  // namespace

bool is_contiguous_in_file(const formats::TensorInfo& info) {
  return info.strides.empty() || info.strides == formats::contiguous_strides(info.shape);
}

void WholeElements::add(uint64_t offset, std::span<const std::byte> bytes, const Take& take) {
  const size_t size = element_bytes_;
  if (!cut_.empty()) {
    const size_t missing = std::min(size - cut_.size(), bytes.size());
    cut_.insert(cut_.end(), bytes.begin(), bytes.begin() + static_cast<long>(missing));
    if (cut_.size() < size) {
      return;
    }
    take(cut_.data(), static_cast<int64_t>(offset / size), 1);
    cut_.clear();
    offset += missing;
    bytes = bytes.subspan(missing);
  }
  const size_t whole = bytes.size() / size * size;
  if (reinterpret_cast<uintptr_t>(bytes.data()) % size == 0) {
    take_aligned(offset, bytes.first(whole), take);
  } else {  // formats without alignment: libtorch wants its elements aligned
    std::vector<std::byte> aligned(std::min(whole, kAlignedBytes));
    for (size_t at = 0; at < whole; at += kAlignedBytes) {
      const auto part = bytes.subspan(at, std::min(kAlignedBytes, whole - at));
      std::memcpy(aligned.data(), part.data(), part.size());
      take_aligned(offset + at, std::span(aligned).first(part.size()), take);
    }
  }
  const auto rest = bytes.subspan(whole);
  cut_.assign(rest.begin(), rest.end());
}

void WholeElements::take_aligned(uint64_t offset, std::span<const std::byte> bytes,
                                 const Take& take) const {
  if (!bytes.empty()) {
    take(bytes.data(), static_cast<int64_t>(offset / element_bytes_),
         static_cast<int64_t>(bytes.size() / element_bytes_));
  }
}

Blocks::Blocks(const formats::TensorInfo& info, const at::Tensor& target) {
  const auto strides =
      info.strides.empty() ? formats::contiguous_strides(info.shape) : info.strides;
  std::vector<int64_t> order(info.shape.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return strides[static_cast<size_t>(a)] > strides[static_cast<size_t>(b)];
  });
  target_ = target.detach().permute(order);
  for (const int64_t dim : order) {
    strides_.push_back(strides[static_cast<size_t>(dim)]);
  }
  extents_.assign(order.size() + 1, 1);
  for (size_t dim = order.size(); dim-- > 0;) {
    extents_[dim] =
        extents_[dim + 1] + (target_.size(static_cast<int64_t>(dim)) - 1) * strides_[dim];
  }
}

void Blocks::put(const at::Tensor& part, int64_t first) {
  part_ = {part, first, first + part.numel()};
  put(target_, 0, 0);
  part_.elements.reset();
}

void Blocks::put(const at::Tensor& block, size_t dim, int64_t base) {
  const int64_t extent = extents_[dim];
  if (base >= part_.end || base + extent <= part_.begin) {
    return;
  }
  if (base >= part_.begin && base + extent <= part_.end) {
    copy(block, dim, base);
    return;
  }
  const int64_t stride = strides_[dim];  // > 0, or all of the block were inside or outside
  const int64_t inner = extents_[dim + 1];
  const int64_t size = block.size(0);
  const int64_t begin = part_.begin - base;
  const int64_t end = part_.end - base;
  // Rows [whole, whole_end) are inside; those around them that touch the part are cut.
  const int64_t touched = std::max<int64_t>(0, begin < inner ? 0 : (begin - inner) / stride + 1);
  const int64_t touched_end = std::min(size, (end + stride - 1) / stride);
  const int64_t whole =
      std::clamp((std::max<int64_t>(0, begin) + stride - 1) / stride, touched, touched_end);
  const int64_t whole_end =
      std::clamp(end < inner ? whole : (end - inner) / stride + 1, whole, touched_end);
  for (int64_t row = touched; row < whole; ++row) {
    put(block.select(0, row), dim + 1, base + row * stride);
  }
  if (whole < whole_end) {
    copy(block.narrow(0, whole, whole_end - whole), dim, base + whole * stride);
  }
  for (int64_t row = whole_end; row < touched_end; ++row) {
    put(block.select(0, row), dim + 1, base + row * stride);
  }
}

void Blocks::copy(const at::Tensor& block, size_t dim, int64_t base) const {
  const at::IntArrayRef strides(strides_.data() + dim, strides_.size() - dim);
  const int64_t offset = part_.elements.storage_offset() + base - part_.begin;
  block.copy_(part_.elements.as_strided(block.sizes(), strides, offset));
}

}  // namespace lockstep::weights
