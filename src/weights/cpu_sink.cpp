// Bytes into CPU tensors: a copy where file and target are laid out alike, element by element (in
// blocks, by libtorch) where types or strides differ.

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>

#include "weights/elements.h"
#include "weights/fresh_memory.h"
#include "weights/scalar_type.h"
#include "weights/sink.h"

namespace lockstep::weights {

namespace {

class CpuSink : public WeightSink {
 public:
  CpuSink(const LoadPlan& plan, std::span<const WeightTarget> targets) {
    for (const PlannedTensor& planned : plan.tensors) {
      const formats::TensorInfo& info = planned.tensor->info;
      const at::Tensor& tensor = targets[planned.target].tensor;
      if (!tensor.is_cpu()) {
        targets_.push_back(nullptr);
        continue;
      }
      auto* const begin = static_cast<std::byte*>(tensor.mutable_data_ptr());
      auto target = std::make_unique<Target>(scalar_type_of(info.dtype));
      target->place = {begin, begin + tensor.nbytes()};
      target->is_plain = is_contiguous_in_file(info) && tensor.is_contiguous() &&
                         tensor.scalar_type() == target->type;
      if (!target->is_plain) {
        target->blocks = std::make_unique<Blocks>(info, tensor);
      } else if (!tensor.is_inference()) {
        tensor.unsafeGetTensorImpl()->bump_version();  // as copy_() does, for autograd
      }
      targets_.push_back(std::move(target));
    }
  }

  void put(size_t which, uint64_t offset, std::span<const std::byte> bytes) override {
    Target& target = *targets_[which];
    if (target.is_plain) {
      memory_.copy(target.place, offset, bytes);
      return;
    }
    const at::NoGradGuard no_grad;
    target.elements.add(offset, bytes, [&](const std::byte* data, int64_t first, int64_t count) {
      target.blocks->put(
          at::from_blob(const_cast<std::byte*>(data), {count}, at::TensorOptions(target.type)),
          first);
    });
  }

 private:
  struct Target {
    explicit Target(at::ScalarType type_in_file)
        : type(type_in_file), elements(c10::elementSize(type_in_file)) {}

    const at::ScalarType type;  // in the file
    WholeElements elements;
    FreshMemory::Place place;
    bool is_plain = false;
    std::unique_ptr<Blocks> blocks;
  };

  std::vector<std::unique_ptr<Target>> targets_;  // null: of another sink
  FreshMemory memory_;
};

}  // namespace

std::unique_ptr<WeightSink> make_cpu_sink(const LoadPlan& plan,
                                          std::span<const WeightTarget> targets) {
  return std::make_unique<CpuSink>(plan, targets);
}

}  // namespace lockstep::weights
