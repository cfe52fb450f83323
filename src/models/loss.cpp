// Shapes: B batch, T time, V vocabulary.
#include <ATen/core/Reduction.h>
#include <ATen/ops/cross_entropy_loss.h>

#include <lockstep/models/loss.h>

#include "device/functions/functions.h"
#include "models/shifted_labels.h"

namespace lockstep {
namespace models {

at::Tensor shifted_labels(const at::Tensor& labels_BT) {
  at::Tensor shifted_BT = labels_BT.roll(-1, 1);
  shifted_BT.select(1, -1).fill_(kIgnoredLabel);
  return shifted_BT;
}

NextTokens next_tokens(const at::Tensor& logits_BTV, const at::Tensor& labels_BT) {
  return logits_BTV.is_cpu() ? NextTokens{logits_BTV.slice(1, 0, -1), labels_BT.slice(1, 1)}
                             : NextTokens{logits_BTV, shifted_labels(labels_BT)};
}

}  // namespace models

at::Tensor masked_token_loss(at::Tensor logits_BTV, const at::Tensor& labels_BT) {
  if (device::has_functions(logits_BTV)) {
    const bool consumes = device::is_last_owner(logits_BTV);  // before there is a view
    return device::cross_entropy(logits_BTV.flatten(0, 1), labels_BT.flatten(),
                                 {.ignored = kIgnoredLabel, .consumes = consumes});
  }
  return at::cross_entropy_loss(logits_BTV.flatten(0, 1), labels_BT.flatten(), {},
                                at::Reduction::Mean, kIgnoredLabel);
}

at::Tensor next_token_loss(at::Tensor logits_BTV, const at::Tensor& labels_BT) {
  if (device::has_functions(logits_BTV)) {
    return masked_token_loss(std::move(logits_BTV), models::shifted_labels(labels_BT));
  }
  const models::NextTokens next = models::next_tokens(logits_BTV, labels_BT);
  return masked_token_loss(next.logits_BTV, next.labels_BT);
}

}  // namespace lockstep
