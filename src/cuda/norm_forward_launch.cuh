#pragma once

#include "cuda/norm_any.cuh"
#include "cuda/norm_forward.cuh"
#include "cuda/norm_launch.cuh"

namespace lockstep::cuda {

template <typename T, typename Shape, bool kDrops>
void launch_forward_rows(const LockstepNormForward& a, cudaStream_t stream) {
  const auto kernel = norm_forward_rows<T, kWide<T>, Shape::kSteps, Shape::kWarps, Shape::kRows,
                                        kDrops, Shape::kBlocks>;
  constexpr int kThreads = 32 * Shape::kWarps * Shape::kRows;
  const auto blocks = static_cast<unsigned>(ceil_div(a.rows, Shape::kRows));
  kernel<<<blocks, kThreads, 0, stream>>>(a);
}

template <typename T>
cudaError_t launch_norm_forward(const LockstepNormForward& a, cudaStream_t stream) {
  if (a.rows == 0) return cudaSuccess;
  const bool drops = a.branch != nullptr && a.dropout.probability > 0;
  const bool wide = a.columns % kWide<T> == 0 && is_wide(a.x) && is_wide(a.branch) &&
                    is_wide(a.sum) && is_wide(a.out) && is_wide(a.weight) && is_wide(a.bias);
  const bool launched = wide && with_norm_shape(a.columns / kWide<T>, [&](auto shape) {
                          using Shape = decltype(shape);
                          drops ? launch_forward_rows<T, Shape, true>(a, stream)
                                : launch_forward_rows<T, Shape, false>(a, stream);
                        });
  if (!launched) {
    const auto blocks = static_cast<unsigned>(a.rows);
    norm_forward_any<T><<<blocks, kAnyThreads, 0, stream>>>(a);
  }
  return cudaGetLastError();
}

}  // namespace lockstep::cuda
