#include "ddp/hook_memory.h"

#include <ATen/ops/full.h>

#include "ddp/device/device_path.h"

namespace lockstep::ddp {

at::Tensor HookMemory::piece(size_t bucket, int64_t numel, const at::TensorOptions& options,
                             Group& group) {
  if (bucket >= pieces_.size()) {
    pieces_.resize(bucket + 1);
  }
  Piece& piece = pieces_[bucket];
  const at::ScalarType type = c10::typeMetaToScalarType(options.dtype());
  const int64_t bytes = numel * static_cast<int64_t>(c10::elementSize(type));
  if (piece.group != group.id() || piece.bytes.numel() != bytes ||
      piece.bytes.device() != options.device()) {
    piece = {};  // before the new one: never two at a time
    piece = {group_memory(group, bytes, options.device()), group.id()};
  }
  return piece.bytes.view(type);
}

bool HookSteps::enter(Group& group) {
  if (group_ == group.id()) {
    return false;
  }
  const at::Tensor count = at::full({1}, count_, at::kLong);
  group.all_reduce(count, {.op = ReduceOp::Max});
  count_ = count.item<int64_t>();
  group_ = group.id();
  return true;
}

}  // namespace lockstep::ddp
