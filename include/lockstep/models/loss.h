#pragma once

// The losses of language models.

#include <ATen/core/Tensor.h>

namespace lockstep {

// A label that counts for nothing: padding, or a token that was not masked.
inline constexpr int64_t kIgnoredLabel = -100;

// The mean cross entropy of a causal model: the logits at t against the token at t + 1. `labels_BT`
// are mostly the ids themselves. logits [batch, time, vocabulary] -> scalar.
at::Tensor next_token_loss(const at::Tensor& logits_BTV, const at::Tensor& labels_BT);

// The mean cross entropy of a masked model: the logits at t against the label at t.
at::Tensor masked_token_loss(const at::Tensor& logits_BTV, const at::Tensor& labels_BT);

}  // namespace lockstep
