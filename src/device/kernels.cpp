#include "device/kernels.h"

#include <limits>

#include <lockstep/base/error.h>

#include "device/plugin.h"
#include "device/twins/twins.h"

namespace lockstep::device {
namespace {

size_t no_bytes(int64_t, int64_t) {
  return 0;
}

size_t no_sort_bytes(int64_t) {
  return 0;
}

constexpr LockstepKernels kTwins = {
    .norm_forward = twin_norm_forward,
    .norm_backward = twin_norm_backward,
    .gelu_forward = twin_gelu_forward,
    .gelu_backward = twin_gelu_backward,
    .cross_entropy = twin_cross_entropy,
    .scale = twin_scale,
    .embedding_forward = twin_embedding_forward,
    .embedding_sort = twin_embedding_sort,
    .embedding_backward = twin_embedding_backward,
    .position_backward = twin_position_backward,
    .step_begin = twin_step_begin,
    .adamw = twin_adamw,
    .sgd = twin_sgd,
    .batch_norm_forward = twin_batch_norm_forward,
    .batch_norm_backward = twin_batch_norm_backward,
    .norm_scratch_bytes = no_bytes,
    .column_scratch_bytes = no_bytes,
    .embedding_sort_scratch_bytes = no_sort_bytes,
    .embedding_scratch_bytes = no_bytes,
};

}  // namespace

const LockstepKernels& cpu_kernels() {
  return kTwins;
}

const LockstepKernels* cuda_kernels() {
  return plugin() ? plugin()->kernels : nullptr;
}

std::vector<LockstepChunk> optimizer_chunks(const std::vector<LockstepParameter>& parameters) {
  constexpr int64_t kMost = int64_t{std::numeric_limits<int32_t>::max()} * LOCKSTEP_CHUNK;
  std::vector<LockstepChunk> chunks;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const int64_t count = parameters[i].count;
    if (count < 0 || count > kMost) {
      throw UsageError("optimizer: parameter {} has {} elements; an update takes 0 to {}", i, count,
                       kMost);
    }
    for (int64_t index = 0; index * LOCKSTEP_CHUNK < count; ++index) {
      chunks.push_back({static_cast<int32_t>(i), static_cast<int32_t>(index)});
    }
  }
  return chunks;
}

}  // namespace lockstep::device
