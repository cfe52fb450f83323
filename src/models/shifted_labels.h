#pragma once

// The loss of a causal model without a copy of its logits.

#include <ATen/core/Tensor.h>

namespace lockstep::models {

// Labels [batch, time] for all logits: at t the label of t + 1, at the last t kIgnoredLabel. To cut
// the last logits off instead copies what may be gigabytes. The mean is the same but for the order
// of its sum.
at::Tensor shifted_labels(const at::Tensor& labels_BT);

// The logits and the labels to compare them with, of a causal model. On the CPU the last logits are
// cut off: its sums keep their order, and a result its bits.
struct NextTokens {
  at::Tensor logits_BTV;
  at::Tensor labels_BT;
};
NextTokens next_tokens(const at::Tensor& logits_BTV, const at::Tensor& labels_BT);

}  // namespace lockstep::models
