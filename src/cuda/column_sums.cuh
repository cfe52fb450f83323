#pragma once

// The second stage of sums over rows: partial[num][stride][columns] to up to three arrays of
// columns.

#include "cuda/vectors.cuh"

namespace lockstep::cuda {

struct ColumnSums {
  const float* partial = nullptr;
  int64_t num = 0;  // blocks of the first stage
  int sums = 1;     // arrays that are wanted of each
  int stride = 0;   // arrays in each; 0: as many
  int64_t columns = 0;
  float* to[3] = {};
  bool accumulate = false;
};

cudaError_t launch_column_sums(const ColumnSums& sums, cudaStream_t stream);

}  // namespace lockstep::cuda
