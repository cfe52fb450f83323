// Bytes into CPU tensors: a copy where file and target are laid out alike, element by element (in
// blocks, by libtorch) where types or strides differ.

#include <algorithm>
#include <cstring>
#include <numeric>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>

#include "weights/fresh_memory.h"
#include "weights/scalar_type.h"
#include "weights/sink.h"

namespace lockstep::weights {

namespace {

constexpr size_t kAlignedBytes = 256 << 10;  // a multiple of every element's size

// A tensor of the file seen through its strides there, and the target, with dimensions by falling
// stride in the file: so the elements of a part of the file are few blocks of the target.
class Blocks {
 public:
  Blocks(const formats::TensorInfo& info, const at::Tensor& target)
      : type_(scalar_type_of(info.dtype)) {
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

  // `count` elements as they lie in the file, from element `first` of the tensor's bytes on.
  void put(const std::byte* data, int64_t first, int64_t count) {
    part_ = {data, first, first + count};
    put(target_, 0, 0);
  }

 private:
  struct Part {
    const std::byte* data = nullptr;
    int64_t begin = 0, end = 0;
  };

  // `block` is what is left of the target when the first `dim` dimensions are chosen; its first
  // element lies at `base` in the file.
  void put(const at::Tensor& block, size_t dim, int64_t base) {
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

  void copy(const at::Tensor& block, size_t dim, int64_t base) const {
    const auto offset = static_cast<size_t>(base - part_.begin) * c10::elementSize(type_);
    const at::IntArrayRef strides(strides_.data() + dim, strides_.size() - dim);
    block.copy_(at::from_blob(const_cast<std::byte*>(part_.data + offset), block.sizes(), strides,
                              at::TensorOptions(type_)));
  }

  at::ScalarType type_;
  at::Tensor target_;
  std::vector<int64_t> strides_;  // in the file, in elements
  std::vector<int64_t> extents_;  // elements of the file that the dimensions from here on span
  Part part_;
};

class CpuSink : public WeightSink {
 public:
  CpuSink(const LoadPlan& plan, std::span<const WeightTarget> targets) {
    for (const PlannedTensor& planned : plan.tensors) {
      const formats::TensorInfo& info = planned.tensor->info;
      const at::Tensor& tensor = targets[planned.target].tensor;
      auto* const begin = static_cast<std::byte*>(tensor.mutable_data_ptr());
      Target target{.place = {begin, begin + tensor.nbytes()},
                    .element_bytes = c10::elementSize(scalar_type_of(info.dtype))};
      const bool is_contiguous_in_file =
          info.strides.empty() || info.strides == formats::contiguous_strides(info.shape);
      target.is_plain = is_contiguous_in_file && tensor.is_contiguous() &&
                        tensor.scalar_type() == scalar_type_of(info.dtype);
      if (!target.is_plain) {
        target.blocks = std::make_unique<Blocks>(info, tensor);
      } else if (!tensor.is_inference()) {
        tensor.unsafeGetTensorImpl()->bump_version();  // as copy_() does, for autograd
      }
      targets_.push_back(std::move(target));
    }
  }

  void put(size_t which, uint64_t offset, std::span<const std::byte> bytes) override {
    Target& target = targets_[which];
    if (target.is_plain) {
      memory_.copy(target.place, offset, bytes);
      return;
    }
    put_elements(target, offset, bytes);
  }

 private:
  struct Target {
    FreshMemory::Place place;
    size_t element_bytes = 1;
    bool is_plain = false;
    std::unique_ptr<Blocks> blocks;
    std::vector<std::byte> cut;  // the begin of an element whose end has not come yet
  };

  static void put_elements(Target& target, uint64_t offset, std::span<const std::byte> bytes) {
    const at::NoGradGuard no_grad;
    const size_t size = target.element_bytes;
    if (!target.cut.empty()) {
      const size_t missing = std::min(size - target.cut.size(), bytes.size());
      target.cut.insert(target.cut.end(), bytes.begin(),
                        bytes.begin() + static_cast<long>(missing));
      if (target.cut.size() < size) {
        return;
      }
      target.blocks->put(target.cut.data(), static_cast<int64_t>(offset / size), 1);
      target.cut.clear();
      offset += missing;
      bytes = bytes.subspan(missing);
    }
    const size_t whole = bytes.size() / size * size;
    if (reinterpret_cast<uintptr_t>(bytes.data()) % size == 0) {
      put_aligned(target, offset, bytes.first(whole));
    } else {  // formats without alignment: libtorch wants its elements aligned
      std::vector<std::byte> aligned(std::min(whole, kAlignedBytes));
      for (size_t at = 0; at < whole; at += kAlignedBytes) {
        const auto part = bytes.subspan(at, std::min(kAlignedBytes, whole - at));
        std::memcpy(aligned.data(), part.data(), part.size());
        put_aligned(target, offset + at, std::span(aligned).first(part.size()));
      }
    }
    const auto rest = bytes.subspan(whole);
    target.cut.assign(rest.begin(), rest.end());
  }

  static void put_aligned(Target& target, uint64_t offset, std::span<const std::byte> bytes) {
    const size_t size = target.element_bytes;
    if (!bytes.empty()) {
      target.blocks->put(bytes.data(), static_cast<int64_t>(offset / size),
                         static_cast<int64_t>(bytes.size() / size));
    }
  }

  std::vector<Target> targets_;
  FreshMemory memory_;
};

}  // namespace

std::unique_ptr<WeightSink> make_cpu_sink(const LoadPlan& plan,
                                          std::span<const WeightTarget> targets) {
  return std::make_unique<CpuSink>(plan, targets);
}

}  // namespace lockstep::weights
