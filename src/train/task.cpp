// Shapes: B batch, V classes.
#include <limits>

#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/where.h>
#include <torch/nn/module.h>

#include <lockstep/base/error.h>
#include <lockstep/data/dataset.h>
#include <lockstep/train/task.h>

#include "ddp/device/device_path.h"

namespace lockstep {
namespace {

void refuse_wrong_labels(const at::Tensor& target_B, const at::Tensor& is_wrong_B,
                         int64_t num_classes) {
  if (is_wrong_B.any().item<bool>()) {
    throw UsageError("classify: the label {} is not in [0, {}), the classes of the logits",
                     target_B.masked_select(is_wrong_B)[0].item<int64_t>(), num_classes);
  }
}

// Nothing here waits for the device.
TaskOutput classify_on_device(const at::Tensor& logits_BV, const at::Tensor& target_B,
                              const at::Tensor& is_wrong_B, double label_smoothing) {
  const int64_t num_classes = logits_BV.size(1);
  // The kernel would stop the whole device at a label that is not a class.
  const at::Tensor safe_B = target_B.masked_fill(is_wrong_B, kCorruptTarget);
  // Wrong labels count, so that a batch of nothing else is not taken for one of unreadable samples.
  const at::Tensor num_counted = safe_B.ge(0).logical_or(is_wrong_B).sum();
  const at::Tensor sum = at::cross_entropy_loss(logits_BV, safe_B, {}, at::Reduction::Sum,
                                                kCorruptTarget, label_smoothing);
  // It goes through the logits: the sum above has no gradient where no label is a class.
  const at::Tensor poison =
      at::where(is_wrong_B.any(), std::numeric_limits<double>::quiet_NaN(), 0.0).to(sum);
  const at::Tensor correct_B = logits_BV.argmax(1).eq(safe_B).logical_and(safe_B.ge(0));
  return {.loss = sum / num_counted.clamp_min(1) + poison * logits_BV.select(0, 0).sum(),
          .num_counted = num_counted,
          .num_correct = correct_B.sum(),
          .find_fault = [target_B, is_wrong_B, num_classes] {
            refuse_wrong_labels(target_B, is_wrong_B, num_classes);
          }};
}

}  // namespace

int64_t Count::value() const {
  return counted_.defined() ? counted_.item().toLong() : number_;
}

void TrainingTask::move_to(at::Device device) {
  module()->to(device);
}

TaskOutput classify(const at::Tensor& logits_BV, const at::Tensor& target_B,
                    double label_smoothing) {
  const at::Tensor is_wrong_B = target_B.ge(logits_BV.size(1))
                                    .logical_or(target_B.lt(0))
                                    .logical_and(target_B.ne(kCorruptTarget));
  if (ddp::takes_device_path(logits_BV.device())) {
    return classify_on_device(logits_BV, target_B, is_wrong_B, label_smoothing);
  }
  refuse_wrong_labels(target_B, is_wrong_B, logits_BV.size(1));
  const at::Tensor counts_B = target_B.ge(0);
  const auto num_counted = counts_B.sum().item<int64_t>();
  // All samples of this piece may be unreadable: a loss of 0 with gradients of 0, not of 0 / 0.
  const at::Tensor loss = num_counted == 0
                              ? logits_BV.sum() * 0
                              : at::cross_entropy_loss(logits_BV, target_B, {}, at::Reduction::Mean,
                                                       kCorruptTarget, label_smoothing);
  const at::Tensor correct_B = logits_BV.argmax(1).eq(target_B).logical_and(counts_B);
  return {.loss = loss, .num_counted = num_counted, .num_correct = correct_B.sum().item<int64_t>()};
}

}  // namespace lockstep
