#pragma once

// Sorts rows by their ids, stably, eight bits at a time from the lowest: each pass counts the
// digits of every block, adds the counts up, and moves the rows.

#include "cuda/vectors.cuh"
#include "device/plugin_kernels.h"

namespace lockstep::cuda {

inline constexpr int kSortThreads = 256;
inline constexpr int kSortItems = 1024;  // per block
inline constexpr int kDigits = 256;

cudaError_t launch_embedding_sort(const LockstepEmbeddingSort& arguments, cudaStream_t stream);
size_t embedding_sort_scratch(int64_t rows);

}  // namespace lockstep::cuda
