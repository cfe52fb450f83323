#include "cuda/errors.h"
#include "cuda/kernels.h"
#include "cuda/norm_launch.cuh"
#include "cuda/vectors.cuh"

namespace lockstep::cuda {

const char* norm_forward(const LockstepNormForward* arguments, void* stream) {
  const LockstepNormForward& a = *arguments;
  if (const char* error = check_matrix(a.type, a.rows, a.columns)) return error;
  if (const char* error = check_dropout(a.dropout)) return error;
  if (a.branch != nullptr && a.sum == nullptr) return "the sum of x and a branch needs a place";
  const auto on = static_cast<cudaStream_t>(stream);
  return text_of(a.type == LOCKSTEP_FLOAT32 ? launch_norm_forward<float>(a, on)
                                            : launch_norm_forward<bfloat16>(a, on));
}

const char* norm_backward(const LockstepNormBackward* arguments, void* stream) {
  const LockstepNormBackward& a = *arguments;
  if (const char* error = check_matrix(a.type, a.rows, a.columns)) return error;
  if (const char* error = check_dropout(a.dropout)) return error;
  const auto on = static_cast<cudaStream_t>(stream);
  return text_of(a.type == LOCKSTEP_FLOAT32 ? launch_norm_backward<float>(a, on)
                                            : launch_norm_backward<bfloat16>(a, on));
}

size_t norm_scratch_bytes(int64_t rows, int64_t columns) {
  const int64_t blocks = rows < 1 ? 1 : rows < kMaxNormBlocks ? rows : kMaxNormBlocks;
  return static_cast<size_t>(blocks * 3 * columns) * sizeof(float);
}

}  // namespace lockstep::cuda
