#pragma once

#include "cuda/column_sums.cuh"
#include "cuda/norm_any.cuh"
#include "cuda/norm_backward.cuh"
#include "cuda/norm_launch.cuh"

namespace lockstep::cuda {

// Returns the number of blocks, each of which has left partial sums.
template <typename T, typename Shape, bool kDrops, bool kBranchBias>
int64_t launch_backward_rows(const LockstepNormBackward& a, cudaStream_t stream) {
  const auto kernel = norm_backward_rows<T, kWide<T>, Shape::kSteps, Shape::kWarps, Shape::kRows,
                                         kDrops, kBranchBias, Shape::kBackwardBlocks>;
  constexpr int kThreads = 32 * Shape::kWarps * Shape::kRows;
  const size_t shared = Shape::kRows * a.columns * sizeof(float);  // at most 32 KiB
  const int64_t resident = resident_blocks(kernel, kThreads, shared);
  const int64_t wanted = ceil_div(a.rows, Shape::kRows);
  const int64_t most = resident < kMaxNormBlocks ? resident : kMaxNormBlocks;
  const int64_t blocks = wanted < 1 ? 1 : wanted < most ? wanted : most;
  kernel<<<static_cast<unsigned>(blocks), kThreads, shared, stream>>>(
      a, static_cast<float*>(a.scratch));
  return blocks;
}

template <typename T, typename Shape>
int64_t launch_backward_shape(const LockstepNormBackward& a, cudaStream_t stream) {
  const bool has_bias = a.grad_branch_bias != nullptr;
  if (a.dropout.probability > 0) {
    return has_bias ? launch_backward_rows<T, Shape, true, true>(a, stream)
                    : launch_backward_rows<T, Shape, true, false>(a, stream);
  }
  return has_bias ? launch_backward_rows<T, Shape, false, true>(a, stream)
                  : launch_backward_rows<T, Shape, false, false>(a, stream);
}

template <typename T>
cudaError_t launch_norm_backward(const LockstepNormBackward& a, cudaStream_t stream) {
  const bool wide = a.columns % kWide<T> == 0 && is_wide(a.grad_out) && is_wide(a.grad_sum) &&
                    is_wide(a.sum) && is_wide(a.grad_x) && is_wide(a.grad_branch) &&
                    is_wide(a.weight);
  auto* partial = static_cast<float*>(a.scratch);
  ColumnSums sums{.partial = partial,
                  .sums = a.grad_branch_bias != nullptr ? 3 : 2,
                  .columns = a.columns,
                  .to = {a.grad_weight, a.grad_bias, a.grad_branch_bias},
                  .accumulate = a.accumulate != 0};
  const bool launched = wide && with_norm_shape(a.columns / kWide<T>, [&](auto shape) {
                          sums.num = launch_backward_shape<T, decltype(shape)>(a, stream);
                        });
  if (!launched) {
    sums.num = a.rows < 1 ? 1 : a.rows < kAnyBlocks ? a.rows : kAnyBlocks;
    norm_backward_any<T><<<static_cast<unsigned>(sums.num), kAnyThreads, 0, stream>>>(a, partial);
    sums.stride = 3;
  }
  return launch_column_sums(sums, stream);
}

}  // namespace lockstep::cuda
