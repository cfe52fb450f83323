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
//
// Logits may be gigabytes. Give them up to save a copy of them on a GPU, as a temporary or with
// std::move(): where nobody else has them, their memory becomes that of their gradient. Logits that
// a caller keeps stay what they are.
at::Tensor next_token_loss(at::Tensor logits_BTV, const at::Tensor& labels_BT);

// Returns the mean cross entropy of a masked model, a scalar: the logits at t are compared with the
// label at t. What next_token_loss() says of the logits' memory holds here, too.
at::Tensor masked_token_loss(at::Tensor logits_BTV, const at::Tensor& labels_BT);

}  // namespace lockstep
