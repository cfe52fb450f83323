#include "train/tally.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include "ddp/device/device_path.h"

namespace lockstep::train {
namespace {

bool is_on_device(const TaskOutput& output) {
  return ddp::takes_device_path(output.loss.device()) || output.num_counted.is_on_device() ||
         output.num_correct.is_on_device();
}

at::Tensor as_number(const at::Tensor& tensor) {
  return tensor.detach().to(at::kDouble).reshape({});
}

}  // namespace

Tally::Tally(int64_t num_rows)
    : host_(at::zeros({num_rows, NumColumns}, at::TensorOptions(at::kDouble))) {}

void Tally::add(int64_t row, const TaskOutput& output, const Batch& batch) {
  const Count counted = num_counted(output, batch);
  if (is_on_device(output)) {
    add_on_device(row, as_number(output.loss), counted, output.num_correct);
    return;
  }
  double* const sums = host_.mutable_data_ptr<double>() + row * NumColumns;
  sums[Loss] += output.loss.item<double>();
  sums[Counted] += static_cast<double>(counted.value());
  sums[Correct] += static_cast<double>(output.num_correct.value());
}

void Tally::add_sum(int64_t row, const TaskOutput& output, const Batch& batch) {
  const Count counted = num_counted(output, batch);
  if (is_on_device(output)) {
    const at::Tensor loss = as_number(output.loss);
    const at::Tensor count =
        counted.is_on_device() ? as_number(counted.tensor())
                               : at::full({}, static_cast<double>(counted.value()), loss.options());
    // What counts nothing may have a loss of 0 / 0.
    const at::Tensor sum = (loss * count).masked_fill(count.eq(0), 0);
    add_on_device(row, sum, counted, output.num_correct);
    return;
  }
  const int64_t count = counted.value();
  double* const sums = host_.mutable_data_ptr<double>() + row * NumColumns;
  sums[Loss] += count == 0 ? 0 : output.loss.item<double>() * static_cast<double>(count);
  sums[Counted] += static_cast<double>(count);
  sums[Correct] += static_cast<double>(output.num_correct.value());
}

void Tally::add_on_device(int64_t row, const at::Tensor& loss, const Count& counted,
                          const Count& correct) {
  if (!device_.defined()) {
    device_ = at::zeros(host_.sizes(), host_.options().device(loss.device()));
  }
  const at::Tensor sums = device_.select(0, row);
  sums.select(0, Loss).add_(loss);
  double* const known = host_.mutable_data_ptr<double>() + row * NumColumns;
  const auto add_count = [&](Column column, const Count& count) {
    if (count.is_on_device()) {
      sums.select(0, column).add_(as_number(count.tensor()));
    } else {
      known[column] += static_cast<double>(count.value());
    }
  };
  add_count(Counted, counted);
  add_count(Correct, correct);
}

const at::Tensor& Tally::read() {
  if (device_.defined()) {
    host_ += device_.cpu();
    device_.zero_();
  }
  return host_;
}

void Tally::clear() {
  host_.zero_();
  if (device_.defined()) {
    device_.zero_();
  }
}

Count num_counted(const TaskOutput& output, const Batch& batch) {
  const bool is_said = output.num_counted.is_on_device() || output.num_counted.value() >= 0;
  return is_said ? output.num_counted : Count(batch.num_samples());
}

}  // namespace lockstep::train
