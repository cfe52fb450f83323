#include "train/evaluate.h"

#include <algorithm>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/module.h>

#include <lockstep/base/error.h>
#include <lockstep/data/loader.h>

#include "train/step/precision.h"

namespace lockstep::train {
namespace {

// Restores the mode when it goes.
class EvalMode {
 public:
  explicit EvalMode(std::shared_ptr<torch::nn::Module> module)
      : module_(std::move(module)), was_training_(module_->is_training()) {
    module_->eval();
  }
  ~EvalMode() { module_->train(was_training_); }
  EvalMode(const EvalMode&) = delete;
  EvalMode& operator=(const EvalMode&) = delete;

 private:
  std::shared_ptr<torch::nn::Module> module_;
  bool was_training_;
};

constexpr int64_t kColumns = 3;  // of a batch: sum of losses, counted, correct

}  // namespace

Evaluation evaluate(TrainingTask& task, const std::shared_ptr<const Dataset>& data, Group& group,
                    const EvaluateOptions& options) {
  const at::NoGradGuard no_grad;
  const EvalMode eval_mode(task.module());
  const Autocast autocast(options.precision);
  const int64_t num_batches = (data->size() + options.batch_size - 1) / options.batch_size;
  std::vector<int64_t> mine;  // every size()-th batch
  for (int64_t batch = group.rank(); batch < num_batches; batch += group.size()) {
    const int64_t end = std::min((batch + 1) * options.batch_size, data->size());
    for (int64_t i = batch * options.batch_size; i < end; ++i) {
      mine.push_back(i);
    }
  }
  const at::Tensor table = at::zeros({num_batches, kColumns}, at::kDouble);
  auto* rows = table.mutable_data_ptr<double>();
  Loader loader(data, {.num_workers = options.workers});
  loader.start(std::move(mine), options.batch_size, 0, 0);
  for (int64_t batch = group.rank(); batch < num_batches; batch += group.size()) {
    const auto samples = loader.next();
    LOCKSTEP_CHECK(samples.has_value(), "batch {} of {} did not come", batch, num_batches);
    const TaskOutput output = task.forward(*samples);
    double* row = rows + batch * kColumns;
    const int64_t counted = num_counted(output, *samples);
    row[0] = counted == 0 ? 0 : output.loss.item<double>() * static_cast<double>(counted);
    row[1] = static_cast<double>(counted);
    row[2] = static_cast<double>(output.num_correct);
  }
  group.all_reduce(table);  // the other ranks' rows are zeros here: nothing is rounded
  double loss = 0, counted = 0, correct = 0;
  for (int64_t batch = 0; batch < num_batches; ++batch) {
    loss += rows[batch * kColumns];
    counted += rows[batch * kColumns + 1];
    correct += rows[batch * kColumns + 2];
  }
  return {.loss = loss / counted,  // of nothing: NaN, which is neither good nor bad
          .num_counted = static_cast<int64_t>(counted),
          .num_correct = correct >= 0 ? static_cast<int64_t>(correct) : -1};
}

int64_t num_counted(const TaskOutput& output, const Batch& batch) {
  return output.num_counted >= 0 ? output.num_counted : batch.num_samples();
}

}  // namespace lockstep::train
