#include <algorithm>

#include <ATen/ScalarOps.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/div.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <lockstep/ddp/compress_hooks.h>

#include "ddp/device/device_path.h"
#include "ddp/hook_memory.h"

namespace lockstep {
namespace {

// Divided values wait here for their conversion: small enough to stay in a core's cache.
constexpr int64_t kBlockElements = 16 << 10;

// One pass over the memory of `wide`: divides and converts block by block. On a device one
// operation does both.
void divide_into(const at::Tensor& narrow, const at::Tensor& wide, int divisor) {
  if (ddp::takes_device_path(wide.device())) {
    at::Tensor out = narrow;
    // As a tensor: with a Scalar, this operation wants an output of the input's type.
    at::div_out(out, wide, at::native::wrapped_scalar_tensor(divisor));
    return;
  }
  at::Tensor block = at::empty({std::min(kBlockElements, wide.numel())}, wide.options());
  for (int64_t begin = 0; begin < wide.numel(); begin += kBlockElements) {
    const int64_t length = std::min(kBlockElements, wide.numel() - begin);
    at::Tensor divided = block.narrow(0, 0, length);
    at::div_out(divided, wide.narrow(0, begin, length), at::Scalar(divisor));
    narrow.narrow(0, begin, length).copy_(divided);
  }
}

class CompressHook : public CommHook {
 public:
  explicit CompressHook(at::ScalarType type) : type_(type) {}

  Work start(const GradBucket& bucket, Group& group) override {
    if (group.size() == 1 || bucket.buffer.numel() == 0) {
      return {};
    }
    if (!is_wide(bucket)) {
      return group.all_reduce_async(bucket.buffer, {.op = ReduceOp::Average});
    }
    const c10::NoGradGuard no_grad;
    const at::Tensor narrow = small_copy(bucket, group);
    divide_into(narrow, bucket.buffer, group.size());
    return group.all_reduce_async(narrow, {.op = ReduceOp::Sum});
  }

  void finish(const GradBucket& bucket, Group& group) override {
    if (group.size() > 1 && bucket.buffer.numel() > 0 && is_wide(bucket)) {
      const c10::NoGradGuard no_grad;
      bucket.buffer.copy_(small_copy(bucket, group));
    }
  }

 private:
  static bool is_wide(const GradBucket& bucket) { return bucket.buffer.element_size() > 2; }

  at::Tensor small_copy(const GradBucket& bucket, Group& group) {
    return memory_.piece(bucket.index, bucket.buffer.numel(), bucket.buffer.options().dtype(type_),
                         group);
  }

  const at::ScalarType type_;
  ddp::HookMemory memory_;
};

}  // namespace

std::shared_ptr<CommHook> fp16_compress() {
  return std::make_shared<CompressHook>(at::kHalf);
}

std::shared_ptr<CommHook> bf16_compress() {
  return std::make_shared<CompressHook>(at::kBFloat16);
}

}  // namespace lockstep
