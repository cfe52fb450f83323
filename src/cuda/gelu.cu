#include "cuda/column_sums.cuh"
#include "cuda/errors.h"
#include "cuda/gelu.cuh"
#include "cuda/kernels.h"

namespace lockstep::cuda {
namespace {

template <int kForm>
constexpr int kForwardSteps = kForm == LOCKSTEP_GELU_TANH ? 1 : 2;  // vectors of each thread
constexpr int kBackwardSteps = 1;
constexpr int kBackwardBlocks = 4;

template <typename T, int N, int kForm>
void launch_elements(const T* x, T* out, int64_t count, cudaStream_t stream) {
  if (count > 0) {
    const auto blocks = static_cast<unsigned>(ceil_div(count, 256 * kForwardSteps<kForm> * N));
    gelu_forward_elements<T, N, kForm, kForwardSteps<kForm>>
        <<<blocks, 256, 0, stream>>>(x, out, count);
  }
}

template <typename T, int kForm>
void launch_forward(const LockstepGeluForward& a, cudaStream_t stream) {
  const auto* x = static_cast<const T*>(a.x);
  auto* out = static_cast<T*>(a.out);
  const int64_t count = a.rows * a.columns;
  const int64_t wide = is_wide(x) && is_wide(out) ? count / kWide<T> * kWide<T> : 0;
  launch_elements<T, kWide<T>, kForm>(x, out, wide, stream);
  launch_elements<T, 1, kForm>(x + wide, out + wide, count - wide, stream);
}

template <typename T, int N, int kForm>
void launch_tiles(const LockstepGeluBackward& a, cudaStream_t stream) {
  const auto kernel = gelu_backward_tiles<T, N, kForm, kBackwardSteps, kBackwardBlocks>;
  const auto wanted = static_cast<int>(resident_blocks(kernel, kTileThreads, 0));
  const TileGrid grid = tile_grid(a.rows, a.columns, N, wanted);
  auto* partial = a.grad_bias == nullptr ? nullptr : static_cast<float*>(a.scratch);
  kernel<<<grid.blocks, kTileThreads, 0, stream>>>(a, grid.vectors, partial);
  if (partial != nullptr) {
    launch_column_sums({.partial = partial,
                        .num = grid.blocks.y,
                        .sums = 1,
                        .columns = a.columns,
                        .to = {a.grad_bias},
                        .accumulate = a.accumulate != 0},
                       stream);
  }
}

template <typename T, int kForm>
void launch_backward(const LockstepGeluBackward& a, cudaStream_t stream) {
  const bool wide =
      a.columns % kWide<T> == 0 && is_wide(a.x) && is_wide(a.grad_out) && is_wide(a.grad_x);
  wide ? launch_tiles<T, kWide<T>, kForm>(a, stream) : launch_tiles<T, 1, kForm>(a, stream);
}

const char* check_form(int32_t form) {
  return form == LOCKSTEP_GELU_ERF || form == LOCKSTEP_GELU_TANH ? nullptr
                                                                 : "gelu's form is erf or tanh";
}

}  // namespace

const char* gelu_forward(const LockstepGeluForward* arguments, void* stream) {
  const LockstepGeluForward& a = *arguments;
  if (const char* error = check_matrix(a.type, a.rows, a.columns)) return error;
  if (const char* error = check_form(a.form)) return error;
  const auto on = static_cast<cudaStream_t>(stream);
  if (a.type == LOCKSTEP_FLOAT32) {
    a.form == LOCKSTEP_GELU_ERF ? launch_forward<float, LOCKSTEP_GELU_ERF>(a, on)
                                : launch_forward<float, LOCKSTEP_GELU_TANH>(a, on);
  } else {
    a.form == LOCKSTEP_GELU_ERF ? launch_forward<bfloat16, LOCKSTEP_GELU_ERF>(a, on)
                                : launch_forward<bfloat16, LOCKSTEP_GELU_TANH>(a, on);
  }
  return text_of(cudaGetLastError());
}

const char* gelu_backward(const LockstepGeluBackward* arguments, void* stream) {
  const LockstepGeluBackward& a = *arguments;
  if (const char* error = check_matrix(a.type, a.rows, a.columns)) return error;
  if (const char* error = check_form(a.form)) return error;
  const auto on = static_cast<cudaStream_t>(stream);
  if (a.type == LOCKSTEP_FLOAT32) {
    a.form == LOCKSTEP_GELU_ERF ? launch_backward<float, LOCKSTEP_GELU_ERF>(a, on)
                                : launch_backward<float, LOCKSTEP_GELU_TANH>(a, on);
  } else {
    a.form == LOCKSTEP_GELU_ERF ? launch_backward<bfloat16, LOCKSTEP_GELU_ERF>(a, on)
                                : launch_backward<bfloat16, LOCKSTEP_GELU_TANH>(a, on);
  }
  return text_of(cudaGetLastError());
}

size_t column_scratch_bytes(int64_t rows, int64_t columns) {
  (void)rows;
  return static_cast<size_t>(kMaxParts * 2 + 2) * columns * sizeof(float);
}

}  // namespace lockstep::cuda
