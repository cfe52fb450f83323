#pragma once

// Runs with and without a graph that must have the same bits, for the CPU's stand-in and a GPU.

#include <functional>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <lockstep/base/log.h>
#include <lockstep/train/trainer.h>

#include "train/points.h"
#include "train/small_net.h"

namespace lockstep::test {

// The net of small_net.h; counts the calls of its training forward.
class CountedTask : public NetTask {
 public:
  TaskOutput forward(const Batch& batch) override {
    num_forwards += module()->is_training() ? 1 : 0;
    return NetTask::forward(batch);
  }
  int num_forwards = 0;
};

// Every number that a run comes to, bit for bit.
struct GraphRun {
  std::vector<double> losses;  // of every step
  std::vector<double> norms;
  std::vector<std::string> lines;  // of the log, from Info on
  TrainResult result;

  bool has_line(const std::string& part) const { return num_lines(part) > 0; }
  int num_lines(const std::string& part) const {
    int num = 0;
    for (const std::string& line : lines) {
      num += line.find(part) != std::string::npos ? 1 : 0;
    }
    return num;
  }
  std::string bits() const {
    std::string text = fmt::format("{:016x} {} {}", result.parameter_hashes.front(), result.steps,
                                   result.num_bad_steps);
    for (size_t i = 0; i < losses.size(); ++i) {
      text += fmt::format(" {:a}/{:a}", losses[i], norms[i]);
    }
    if (result.evaluation) {
      text += fmt::format(" {:a} {}", result.evaluation->loss, result.evaluation->num_correct);
    }
    return text;
  }
};

inline GraphRun run_task(TrainingTask& task, const TrainerData& data, TrainerOptions options,
                         const std::function<void(const StepReport&)>& on_step = {},
                         Group group = make_single_group()) {
  GraphRun run;
  options.log_every = 1;
  const log::Level before = log::level();
  log::set_level(log::Level::Info);
  log::set_sink([&](log::Level, std::string_view line) { run.lines.emplace_back(line); });
  struct End {
    ~End() {
      log::set_sink({});
      log::set_level(before);
    }
    log::Level before;
  } const end{before};
  const TrainWatcher watcher{.on_step = [&](const StepReport& report) {
    run.losses.push_back(report.loss);
    run.norms.push_back(report.grad_norm);
    if (on_step) {
      on_step(report);
    }
  }};
  run.result = Trainer(task, data, std::move(group), options, watcher).run();
  return run;
}

// 24 steps with a schedule, clipping and momenta.
inline TrainerOptions graph_options(TrainDevice device) {
  TrainerOptions options{.epochs = 3, .batch_size = 16, .device = device, .seed = 3};
  options.deterministic = device == TrainDevice::Cuda;
  options.lr = 0.02;
  options.warmup_steps = 4;
  options.clip_norm = 0.5;
  options.workers = 1;
  options.threads = 1;
  return options;
}

inline TrainerData graph_data() {
  return {.train = points(128, 0), .held_out = points(37, 0.5)};
}

// What a step must get right to have the bits of an eager one: each is a run of its own.
struct GraphCase {
  const char* name;
  void (*set)(TrainerOptions&);
};
inline const std::vector<GraphCase>& graph_cases() {
  static const std::vector<GraphCase> cases = {
      {"adamw", [](TrainerOptions&) {}},
      {"sgd",
       [](TrainerOptions& options) {
         options.optimizer = OptimizerKind::Sgd;
         options.schedule = Schedule::Linear;
       }},
      {"no clipping", [](TrainerOptions& options) { options.clip_norm = 0; }},
      {"an update outside the graph",
       [](TrainerOptions& options) {
         options.optimizer = OptimizerKind::Lion;
         options.lr = 0.003;
       }},
      {"an average", [](TrainerOptions& options) { options.ema_decay = 0.9; }},
      {"shards",
       [](TrainerOptions& options) {
         options.shards = 2;
         options.accumulate = 2;
       }},
      {"pieces that are no tree",
       [](TrainerOptions& options) {
         options.accumulate = 3;
         options.batch_size = 15;
       }},
      {"groups",
       [](TrainerOptions& options) {
         options.groups = {{.name = "last", .pattern = "^last", .lr_scale = 0.3},
                           {.name = "frozen", .pattern = "^norm", .is_frozen = true}};
       }},
      {"bfloat16", [](TrainerOptions& options) { options.precision = Precision::BFloat16; }},
      {"float16", [](TrainerOptions& options) { options.precision = Precision::Float16; }},
      {"spikes",
       [](TrainerOptions& options) {
         options.spike_factor = 1.1;
         options.max_bad_steps = 100;
         options.epochs = 6;
       }},
      {"evaluations between steps", [](TrainerOptions& options) { options.eval_every = 5; }}};
  return cases;
}

// Rows of two lengths: every fifth batch is longer.
class TwoLengths : public Dataset {
 public:
  explicit TwoLengths(int64_t num) : num_(num) {}
  int64_t size() const override { return num_; }
  Batch batch(std::span<const SampleKey> samples) const override {
    const int64_t length = samples.front().index % 5 == 1 ? 3 : 2;
    const auto num = static_cast<int64_t>(samples.size());
    at::Tensor input = at::empty({num, length, 6}), target = at::empty({num}, at::kLong);
    for (int64_t i = 0; i < num; ++i) {
      const int64_t index = samples[static_cast<size_t>(i)].index;
      const at::Tensor row =
          at::arange(length * 6, at::kFloat).mul(0.7).add(index).sin().view({length, 6});
      input.select(0, i).copy_(row);
      target.select(0, i).fill_(index % 3);
    }
    return {.input = input, .target = target};
  }

 private:
  int64_t num_;
};
class MeanTask : public CountedTask {
 public:
  TaskOutput forward(const Batch& batch) override {
    return CountedTask::forward({.input = batch.input.mean(1), .target = batch.target});
  }
};

}  // namespace lockstep::test
