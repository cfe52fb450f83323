#include "train/step/step_numbers.h"

#include <algorithm>

#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <lockstep/base/error.h>

namespace lockstep::train {

StepNumbers::StepNumbers(at::Device device, size_t num_lrs) {
  const auto count = static_cast<int64_t>(FirstLr + num_lrs);
  const auto on_device = at::TensorOptions(device);
  host_ = at::empty({count}, at::TensorOptions(at::kDouble).pinned_memory(!device.is_cpu()));
  numbers_ = at::zeros({count}, on_device.dtype(at::kDouble));
  lrs_ = at::zeros({count - FirstLr}, on_device.dtype(at::kFloat));
  result_ = at::zeros({2}, on_device.dtype(at::kDouble));
}

void StepNumbers::write(const Values& values) {
  LOCKSTEP_CHECK(static_cast<int64_t>(values.lrs.size()) == lrs_.size(0),
                 "{} learning rates for {}", values.lrs.size(), lrs_.size(0));
  auto* const numbers = host_.mutable_data_ptr<double>();
  numbers[LossScale] = values.loss_scale;
  numbers[MaxNorm] = values.max_norm;
  numbers[NormLimit] = values.norm_limit;
  std::copy(values.lrs.begin(), values.lrs.end(), numbers + FirstLr);
  numbers_.copy_(host_, /*non_blocking=*/true);
}

void StepNumbers::begin() {
  lrs_.copy_(numbers_.narrow(0, FirstLr, lrs_.size(0)));
}

std::vector<at::Tensor> StepNumbers::lrs() const {
  std::vector<at::Tensor> lrs;
  for (int64_t i = 0; i < lrs_.size(0); ++i) {
    lrs.push_back(lrs_.select(0, i));
  }
  return lrs;
}

at::Tensor StepNumbers::judge(const at::Tensor& norm) {
  const at::Tensor takes = norm.isfinite().logical_and((norm / loss_scale()).le(number(NormLimit)));
  const at::Tensor skips = takes.logical_not().to(at::kFloat);
  result_.copy_(at::stack({norm, skips.to(at::kDouble)}));
  return skips;
}

StepNumbers::Result StepNumbers::result() const {
  const at::Tensor read = result_.to(at::kCPU, /*non_blocking=*/false, /*copy=*/true);
  const auto* const numbers = read.const_data_ptr<double>();
  return {.norm = numbers[0], .skipped = numbers[1] != 0};
}

}  // namespace lockstep::train
