#pragma once

// What ranks give to an operation in tests, and what must come out: pure functions of rank, type
// and size.

#include <ATen/ATen.h>

#include <lockstep/comm/group.h>

namespace lockstep::testing_support {

// Elements [first, first + numel) of what `rank` gives. Small whole numbers: sums and products of
// seven are exact in every type (3^7 = 2187 only in the larger ones).
inline at::Tensor input_of(int rank, int64_t numel, at::ScalarType type, int64_t first = 0) {
  const at::Tensor index = at::arange(first, first + numel, at::kLong);
  const at::Tensor values = (index + rank).remainder(3) - (type == at::kByte ? 0 : 1);
  return (type == at::kBool ? (index + rank).remainder(3) != 0 : values).to(type).contiguous();
}

inline bool is_reducible(at::ScalarType type, ReduceOp op) {
  const bool is_bitwise = op == ReduceOp::BitAnd || op == ReduceOp::BitOr;
  if (type == at::kBool) {
    return is_bitwise;
  }
  const bool is_floating = c10::isFloatingType(type);
  return is_bitwise ? !is_floating : (op != ReduceOp::Average || is_floating);
}

inline at::Tensor reduced(int world, int64_t numel, at::ScalarType type, ReduceOp op,
                          int64_t first = 0) {
  at::Tensor sum = input_of(0, numel, type, first);
  for (int rank = 1; rank < world; ++rank) {
    const at::Tensor x = input_of(rank, numel, type, first);
    switch (op) {
      case ReduceOp::Sum:
      case ReduceOp::Average:
        sum = sum + x;
        break;
      case ReduceOp::Min:
        sum = at::minimum(sum, x);
        break;
      case ReduceOp::Max:
        sum = at::maximum(sum, x);
        break;
      case ReduceOp::Product:
        sum = sum * x;
        break;
      case ReduceOp::BitAnd:
        sum = at::bitwise_and(sum, x);
        break;
      case ReduceOp::BitOr:
        sum = at::bitwise_or(sum, x);
        break;
    }
  }
  return op == ReduceOp::Average ? sum.div(world).to(type) : sum;
}

}  // namespace lockstep::testing_support
