#pragma once

// The arithmetic of PowerSGD whose results must be the same bits on every rank, whatever its CPU
// and number of threads: plain loops in one order, where a BLAS promises nothing.
//
// Thin matrices are kept transposed, a row for each of their few columns: `rows` is rank x length.

#include <cstdint>
#include <string_view>

#include <ATen/core/Tensor.h>

namespace lockstep::ddp {

// Makes the rows orthonormal, each divided by its length + epsilon. A row that depends on those
// before it becomes zero. False if a value was not finite; the rows are then of no use.
bool orthonormalize_rows(const at::Tensor& rows, double epsilon);

// matrix = p_rows^T q_rows; error = what matrix was before, minus that. `error` may be undefined.
void replace_by_product(const at::Tensor& matrix, const at::Tensor& error, const at::Tensor& p_rows,
                        const at::Tensor& q_rows);

// Fills rows that are zero or not finite with standard normal values, the same for the same
// arguments in every process.
struct RowSeed {
  uint64_t seed = 0;
  int64_t step = 0;
  std::string_view name;
};
void fill_empty_rows(const at::Tensor& rows, const RowSeed& seed);

}  // namespace lockstep::ddp
