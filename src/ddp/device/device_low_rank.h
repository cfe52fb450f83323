#pragma once

// What low_rank.h does, for tensors that the host cannot read. Nothing waits for the device, so
// what the host would decide is decided there. Operations whose order a BLAS may choose are avoided
// here too: GPUs of one model compute the same bits.

#include <ATen/core/Tensor.h>

namespace lockstep::ddp {

// Makes the rows orthonormal as orthonormalize_rows() does. Returns a bool of no dimension: whether
// all values were finite.
at::Tensor queue_orthonormalize_rows(const at::Tensor& rows, double epsilon);

// As replace_by_product(). Where `is_finite` is false, the error becomes zero.
void queue_replace_by_product(const at::Tensor& matrix, const at::Tensor& error,
                              const at::Tensor& p_rows, const at::Tensor& q_rows,
                              const at::Tensor& is_finite);

// Replaces rows that are zero or not finite by those of `spare`.
void queue_fill_empty_rows(const at::Tensor& rows, const at::Tensor& spare);

}  // namespace lockstep::ddp
