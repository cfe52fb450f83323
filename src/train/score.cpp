// Shapes: B batch, V classes.
#include "train/score.h"

#include <ATen/ops/tensor.h>

namespace lockstep {

void Score::add(const at::Tensor& loss, const at::Tensor& logits_BV, const at::Tensor& target_B) {
  const int64_t batch = target_B.size(0);
  loss_sum += loss.item<double>() * static_cast<double>(batch);
  num_seen += batch;
  num_correct += logits_BV.argmax(1).eq(target_B).sum().item<int64_t>();
}

Score sum_over_ranks(const Score& score, Group& group) {
  // Doubles hold counts exactly up to 2^53: one collective carries all three.
  const at::Tensor sums = at::tensor(
      {score.loss_sum, static_cast<double>(score.num_seen), static_cast<double>(score.num_correct)},
      at::kDouble);
  group.all_reduce(sums);
  const double* values = sums.const_data_ptr<double>();
  return {values[0], static_cast<int64_t>(values[1]), static_cast<int64_t>(values[2])};
}

}  // namespace lockstep
