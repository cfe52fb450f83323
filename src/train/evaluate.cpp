#include "train/evaluate.h"

#include <algorithm>

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <torch/nn/module.h>

#include <lockstep/base/error.h>

#include "comm/agree.h"
#include "train/device_batches.h"
#include "train/device_settings.h"
#include "train/step/out_of_memory.h"
#include "train/step/precision.h"
#include "train/tally.h"

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

// The samples of this rank: every size()-th batch.
std::vector<int64_t> own_samples(const Dataset& data, const Group& group, int64_t batch_size) {
  std::vector<int64_t> mine;
  for (int64_t first = group.rank() * batch_size; first < data.size();
       first += group.size() * batch_size) {
    for (int64_t i = first; i < std::min(first + batch_size, data.size()); ++i) {
      mine.push_back(i);
    }
  }
  return mine;
}

using FindFault = std::function<void()>;

// A loss that is not a number may be the sign of a fault in the data.
void find_faults(Group& group, const at::Tensor& table, const std::vector<FindFault>& all) {
  if (table.select(1, Tally::Loss).isfinite().all().item<bool>()) {
    return;
  }
  comm::throw_together(group, comm::caught([&] {
                         for (const FindFault& find_fault : all) {
                           find_fault();
                         }
                       }));
}

Evaluation sum_of(const at::Tensor& table) {
  const auto* row = table.const_data_ptr<double>();
  double loss = 0, counted = 0, correct = 0;
  for (int64_t batch = 0; batch < table.size(0); ++batch, row += Tally::NumColumns) {
    loss += row[Tally::Loss];
    counted += row[Tally::Counted];
    correct += row[Tally::Correct];
  }
  return {.loss = loss / counted,  // of nothing: NaN, which is neither good nor bad
          .num_counted = static_cast<int64_t>(counted),
          .num_correct = correct >= 0 ? static_cast<int64_t>(correct) : -1};
}

}  // namespace

Evaluation evaluate(TrainingTask& task, const std::shared_ptr<const Dataset>& data, Group& group,
                    const EvaluateOptions& options) {
  const at::NoGradGuard no_grad;
  const EvalMode eval_mode(task.module());
  const Autocast autocast(options.precision, options.device.type());
  const int64_t num_batches = (data->size() + options.batch_size - 1) / options.batch_size;
  Tally tally(num_batches);
  std::vector<FindFault> all_find_faults;
  DeviceBatches batches(
      data, {.workers = options.workers, .device = options.device, .copies = options.copies});
  batches.start(own_samples(*data, group, options.batch_size), options.batch_size, 0, 0);
  const auto judge = [&](int64_t batch) {
    const auto samples = batches.next();
    LOCKSTEP_CHECK(samples.has_value(), "batch {} of {} did not come", batch, num_batches);
    TaskOutput output = task.forward(*samples);
    tally.add_sum(batch, output, *samples);
    if (output.find_fault) {
      all_find_faults.push_back(std::move(output.find_fault));
    }
    batches.fetch_ahead();
  };
  const auto advice = [&] {
    return MemoryAdvice{
        .what = fmt::format("the evaluation, a batch of {} samples at a time,", options.batch_size),
        .way_out =
            "make the batches smaller: lower train.batch_size or raise train.accumulate, or "
            "lower --batch-size of `lockstep eval`"};
  };
  const auto judge_all = [&] {
    for (int64_t batch = group.rank(); batch < num_batches; batch += group.size()) {
      explain_out_of_memory([&] { judge(batch); }, advice);
    }
  };
  explain_nondeterminism(judge_all, [] { return "the evaluation"; });
  const at::Tensor table = tally.read();
  group.all_reduce(table);  // the other ranks' rows are zeros here: nothing is rounded
  find_faults(group, table, all_find_faults);
  return sum_of(table);
}

}  // namespace lockstep::train
