#include "cuda/batch_norm.cuh"
#include "cuda/errors.h"
#include "cuda/kernels.h"

namespace lockstep::cuda {

__global__ __launch_bounds__(kFinishThreads) void batch_norm_backward_finish(
    LockstepBatchNormBackward a, const float* partial, int parts, float* means) {
  const TwoSums sums = two_sums(partial, parts, a.channels);
  if (!sums.is_mine) return;
  const int64_t channel = static_cast<int64_t>(blockIdx.x) * 32 + threadIdx.x;
  means[channel] = static_cast<float>(sums.first / static_cast<double>(a.rows));
  means[a.channels + channel] = static_cast<float>(sums.second / static_cast<double>(a.rows));
  const auto weight = static_cast<float>(sums.first);
  const auto bias = static_cast<float>(sums.second);
  a.grad_weight[channel] = a.accumulate ? a.grad_weight[channel] + weight : weight;
  a.grad_bias[channel] = a.accumulate ? a.grad_bias[channel] + bias : bias;
}

namespace {

constexpr int kBlocksEach = 4;  // for each multiprocessor

unsigned finish_blocks(int64_t channels) {
  return static_cast<unsigned>(ceil_div(channels, 32));
}

template <typename T, int N>
void launch(const LockstepBatchNormForward& a, cudaStream_t stream) {
  const TileGrid grid = tile_grid(a.rows, a.channels, N, kBlocksEach * num_multiprocessors());
  auto* partial = static_cast<float*>(a.scratch);
  batch_norm_sums<T, N><<<grid.blocks, kTileThreads, 0, stream>>>(a, grid.vectors, partial);
  batch_norm_finish<T><<<finish_blocks(a.channels), kFinishThreads, 0, stream>>>(
      a, partial, static_cast<int>(grid.blocks.y));
  batch_norm_apply<T, N><<<grid.blocks, kTileThreads, 0, stream>>>(a, grid.vectors);
}

template <typename T, int N>
void launch(const LockstepBatchNormBackward& a, cudaStream_t stream) {
  const TileGrid grid = tile_grid(a.rows, a.channels, N, kBlocksEach * num_multiprocessors());
  auto* partial = static_cast<float*>(a.scratch);
  float* means = partial + kMaxParts * 2 * a.channels;
  batch_norm_backward_sums<T, N>
      <<<grid.blocks, kTileThreads, 0, stream>>>(a, grid.vectors, partial);
  batch_norm_backward_finish<<<finish_blocks(a.channels), kFinishThreads, 0, stream>>>(
      a, partial, static_cast<int>(grid.blocks.y), means);
  batch_norm_backward_apply<T, N><<<grid.blocks, kTileThreads, 0, stream>>>(a, grid.vectors, means);
}

bool is_wide_forward(const LockstepBatchNormForward& a) {
  return is_wide(a.x) && is_wide(a.residual) && is_wide(a.out);
}

bool is_wide_backward(const LockstepBatchNormBackward& a) {
  return is_wide(a.grad_out) && is_wide(a.x) && is_wide(a.out) && is_wide(a.grad_x) &&
         is_wide(a.grad_residual);
}

template <typename T, typename Arguments>
void launch_as(const Arguments& a, bool aligned, cudaStream_t stream) {
  aligned&& a.channels % kWide<T> == 0 ? launch<T, kWide<T>>(a, stream) : launch<T, 1>(a, stream);
}

}  // namespace

const char* batch_norm_forward(const LockstepBatchNormForward* arguments, void* stream) {
  const LockstepBatchNormForward& a = *arguments;
  if (const char* error = check_matrix(a.type, a.rows, a.channels)) return error;
  if (a.rows == 0) return "a batch norm needs at least one element for each channel";
  const auto on = static_cast<cudaStream_t>(stream);
  a.type == LOCKSTEP_FLOAT32 ? launch_as<float>(a, is_wide_forward(a), on)
                             : launch_as<bfloat16>(a, is_wide_forward(a), on);
  return text_of(cudaGetLastError());
}

const char* batch_norm_backward(const LockstepBatchNormBackward* arguments, void* stream) {
  const LockstepBatchNormBackward& a = *arguments;
  if (const char* error = check_matrix(a.type, a.rows, a.channels)) return error;
  if (a.rows == 0) return "a batch norm needs at least one element for each channel";
  if (a.relu != 0 && a.out == nullptr) return "the backward pass of relu needs what it gave";
  const auto on = static_cast<cudaStream_t>(stream);
  a.type == LOCKSTEP_FLOAT32 ? launch_as<float>(a, is_wide_backward(a), on)
                             : launch_as<bfloat16>(a, is_wide_backward(a), on);
  return text_of(cudaGetLastError());
}

}  // namespace lockstep::cuda
