#include "cuda/embedding.cuh"
#include "cuda/embedding_sort.cuh"
#include "cuda/errors.h"
#include "cuda/kernels.h"

namespace lockstep::cuda {
namespace {

constexpr int kSorted = 32;  // rows of a block, in the order of their ids
constexpr int kAhead = 4;    // of which so many are fetched at once

template <typename T, typename Table, int N>
void launch_forward(const LockstepEmbeddingForward& a, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(ceil_div(a.rows, kEmbeddingWarps));
  if (a.dropout.probability > 0) {
    embedding_rows<T, Table, N, true><<<blocks, 32 * kEmbeddingWarps, 0, stream>>>(a);
  } else {
    embedding_rows<T, Table, N, false><<<blocks, 32 * kEmbeddingWarps, 0, stream>>>(a);
  }
}

template <typename T, typename Table>
void launch_forward(const LockstepEmbeddingForward& a, cudaStream_t stream) {
  const bool wide = a.columns % 8 == 0 && is_wide(a.tokens) && is_wide(a.positions) &&
                    is_wide(a.segments) && is_wide(a.out);
  // Both types have the same number of elements at once, so float32 activations of bfloat16 tables
  // take four.
  constexpr int N = sizeof(T) == 4 ? 4 : 8;
  wide ? launch_forward<T, Table, N>(a, stream) : launch_forward<T, Table, 1>(a, stream);
}

template <typename T, int N>
void launch_backward(const LockstepEmbeddingBackward& a, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(ceil_div(a.rows, kSorted));
  auto* partial = static_cast<float*>(a.scratch);
  if (a.dropout.probability > 0) {
    embedding_runs<T, N, true, kSorted, kAhead>
        <<<blocks, kEmbeddingThreads, 0, stream>>>(a, partial);
  } else {
    embedding_runs<T, N, false, kSorted, kAhead>
        <<<blocks, kEmbeddingThreads, 0, stream>>>(a, partial);
  }
  constexpr int kColumns = N == 1 ? 1 : 4;
  embedding_long_runs<kColumns, kSorted><<<blocks, 32 * kLongWarps, 0, stream>>>(a, partial);
}

template <typename T>
void launch_backward(const LockstepEmbeddingBackward& a, cudaStream_t stream) {
  const bool wide = a.columns % kWide<T> == 0 && is_wide(a.grad_out) && is_wide(a.grad_table) &&
                    is_wide(a.scratch);
  wide ? launch_backward<T, kWide<T>>(a, stream) : launch_backward<T, 1>(a, stream);
}

template <typename T, int N>
void launch_positions(const LockstepPositionBackward& a, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(ceil_div(a.period * a.columns, 256 * N));
  if (a.dropout.probability > 0) {
    position_sums<T, N, true><<<blocks, 256, 0, stream>>>(a);
  } else {
    position_sums<T, N, false><<<blocks, 256, 0, stream>>>(a);
  }
}

template <typename T>
void launch_positions(const LockstepPositionBackward& a, cudaStream_t stream) {
  const bool wide = a.columns % kWide<T> == 0 && is_wide(a.grad_out) && is_wide(a.grad_positions);
  wide ? launch_positions<T, kWide<T>>(a, stream) : launch_positions<T, 1>(a, stream);
}

}  // namespace

const char* embedding_forward(const LockstepEmbeddingForward* arguments, void* stream) {
  const LockstepEmbeddingForward& a = *arguments;
  if (const char* error = check_matrix(a.type, a.rows, a.columns)) return error;
  if (const char* error = check_matrix(a.table_type, a.rows, a.columns)) return error;
  if (const char* error = check_dropout(a.dropout)) return error;
  if (a.vocabulary <= 0 || a.period <= 0) return "vocabulary and period must be above 0";
  if (a.rows == 0) return nullptr;
  const auto on = static_cast<cudaStream_t>(stream);
  if (a.type == LOCKSTEP_FLOAT32) {
    a.table_type == LOCKSTEP_FLOAT32 ? launch_forward<float, float>(a, on)
                                     : launch_forward<float, bfloat16>(a, on);
  } else {
    a.table_type == LOCKSTEP_FLOAT32 ? launch_forward<bfloat16, float>(a, on)
                                     : launch_forward<bfloat16, bfloat16>(a, on);
  }
  return text_of(cudaGetLastError());
}

const char* embedding_sort(const LockstepEmbeddingSort* arguments, void* stream) {
  const LockstepEmbeddingSort& a = *arguments;
  if (a.rows < 0 || a.rows > INT32_MAX || a.vocabulary <= 0 || a.vocabulary >= INT32_MAX) {
    return "rows must be in [0, 2^31) and the vocabulary in [1, 2^31 - 1)";
  }
  return text_of(launch_embedding_sort(a, static_cast<cudaStream_t>(stream)));
}

const char* embedding_backward(const LockstepEmbeddingBackward* arguments, void* stream) {
  const LockstepEmbeddingBackward& a = *arguments;
  if (const char* error = check_matrix(a.type, a.rows, a.columns)) return error;
  if (const char* error = check_dropout(a.dropout)) return error;
  if (a.rows == 0) return nullptr;
  const auto on = static_cast<cudaStream_t>(stream);
  a.type == LOCKSTEP_FLOAT32 ? launch_backward<float>(a, on) : launch_backward<bfloat16>(a, on);
  return text_of(cudaGetLastError());
}

const char* position_backward(const LockstepPositionBackward* arguments, void* stream) {
  const LockstepPositionBackward& a = *arguments;
  if (const char* error = check_matrix(a.type, a.rows, a.columns)) return error;
  if (const char* error = check_dropout(a.dropout)) return error;
  if (a.period <= 0) return "the period must be above 0";
  const auto on = static_cast<cudaStream_t>(stream);
  a.type == LOCKSTEP_FLOAT32 ? launch_positions<float>(a, on) : launch_positions<bfloat16>(a, on);
  return text_of(cudaGetLastError());
}

size_t embedding_sort_scratch_bytes(int64_t rows) {
  return embedding_sort_scratch(rows);
}

size_t embedding_scratch_bytes(int64_t rows, int64_t columns) {
  return static_cast<size_t>(ceil_div(rows, kSorted) * 2 * columns) * sizeof(float);
}

}  // namespace lockstep::cuda
