#pragma once

// Several shards of a step on one rank: their gradients are summed in the order in which ranks
// would sum them, a binary tree.

#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep::ddp {

// Partial sums of one gradient after `shard` shards form a stack, the largest at the bottom: one
// for each bit of the number. A new shard's gradient is merged with the top while both cover
// equally many shards. The bottom is the gradient's own place, so the sum of all is there at the
// end; the others are made when they are first needed, at most log2 of the shards.
class ShardSum {
 public:
  explicit ShardSum(size_t num_parameters) : above_(num_parameters) {}

  // Adds the gradient of shard 0, 1, ... in turn; an undefined one counts as zeros. `bottom` is the
  // parameter's place.
  void add(size_t parameter, const at::Tensor& bottom, int shard, const at::Tensor& gradient);

 private:
  at::Tensor partial(size_t parameter, const at::Tensor& bottom, size_t depth);

  std::vector<std::vector<at::Tensor>> above_;  // by parameter: the stack without its bottom
};

}  // namespace lockstep::ddp
