// Shapes: B batch, T time, V vocabulary.
#include <ATen/core/Reduction.h>
#include <ATen/ops/cross_entropy_loss.h>

#include <lockstep/models/loss.h>

namespace lockstep {

at::Tensor masked_token_loss(const at::Tensor& logits_BTV, const at::Tensor& labels_BT) {
  return at::cross_entropy_loss(logits_BTV.flatten(0, 1), labels_BT.flatten(), {},
                                at::Reduction::Mean, kIgnoredLabel);
}

at::Tensor next_token_loss(const at::Tensor& logits_BTV, const at::Tensor& labels_BT) {
  return masked_token_loss(logits_BTV.slice(1, 0, -1), labels_BT.slice(1, 1));
}

}  // namespace lockstep
