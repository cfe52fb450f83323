#pragma once

// Sparse gradients (of embeddings): rows from every rank, added up.

#include <ATen/core/Tensor.h>

#include <lockstep/comm/group.h>

namespace lockstep::ddp {

// Collective. The sum of all ranks' sparse gradients divided by `divisor`, coalesced; rows are
// added in the order of the ranks. `gradient` may be undefined or empty on any rank; `like` is the
// parameter.
at::Tensor reduce_sparse(Group& group, const at::Tensor& gradient, const at::Tensor& like,
                         int divisor);

}  // namespace lockstep::ddp
