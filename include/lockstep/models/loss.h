#pragma once

// The losses of language models.
//
// Example:
//   lockstep::GPT2 gpt;
//   lockstep::next_token_loss(gpt(ids), ids).backward();

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace lockstep {

// The label of what does not count: padding, or a token that was not masked.
inline constexpr int64_t kIgnoredLabel = -100;

// Returns the mean cross entropy of a causal model, a scalar: the logits at t, [batch, time,
// vocabulary], are compared with the label at t + 1, [batch, time]. The labels are usually the ids.
at::Tensor next_token_loss(const at::Tensor& logits_BTV, const at::Tensor& labels_BT);

// Returns the mean cross entropy of a masked model, a scalar: the logits at t are compared with the
// label at t.
at::Tensor masked_token_loss(const at::Tensor& logits_BTV, const at::Tensor& labels_BT);

}  // namespace lockstep
