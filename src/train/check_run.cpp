#include "train/check_run.h"

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "ddp/model_check.h"
#include "train/option_ranges.h"
#include "train/run_device.h"
#include "train/train_state.h"

namespace lockstep::train {
namespace {

template <typename Number>
void check_range(const char* name, Number value, const base::ConfigRange& range) {
  if (!range.contains(static_cast<double>(value))) {
    throw UsageError("trainer: {} = {} is not in {}", name, value, range.text());
  }
}

void check_length(const TrainerOptions& options) {
  check_range("epochs", options.epochs, ranges::kCount);
  check_range("max_steps", options.max_steps, ranges::kCountOrNone);
  check_range("max_time", options.max_time.count(), ranges::kCountOrNone);
  check_range("early_stop", options.early_stop, ranges::kCountOrNone);
  check_range("batch_size", options.batch_size, ranges::kCount);
  check_range("accumulate", options.accumulate, ranges::kCount);
  check_range("shards", options.shards, ranges::kCountOrNone);
  check_range("threads", options.threads, ranges::kCountOrNone);
  check_range("workers", options.workers, ranges::kCountOrNone);
  check_range("eval_every", options.eval_every, ranges::kCountOrNone);
  check_range("log_every", options.log_every, {.min = 1});
  check_range("checkpoint_every", options.checkpoint_every, ranges::kCountOrNone);
}

void check_update(const TrainerOptions& options) {
  check_range("lr", options.lr, ranges::kLr);
  check_range("weight_decay", options.weight_decay, ranges::kWeightDecay);
  check_range("beta1", options.beta1, ranges::kDecay);
  check_range("beta2", options.beta2, ranges::kDecay);
  check_range("eps", options.eps, ranges::kEps);
  check_range("momentum", options.momentum, ranges::kDecay);
  check_range("warmup_steps", options.warmup_steps, ranges::kCountOrNone);
  check_range("min_lr_share", options.min_lr_share, ranges::kShare);
  check_range("clip_norm", options.clip_norm, ranges::kNorm);
  check_range("ema_decay", options.ema_decay, ranges::kEmaDecay);
  check_range("max_bad_steps", options.max_bad_steps, ranges::kCountOrNone);
  check_range("spike_factor", options.spike_factor, ranges::kNorm);
  if (options.spike_factor > 0 && options.spike_factor <= 1) {
    throw UsageError(
        "trainer: spike_factor = {} would leave out every step of a usual gradient; give a number "
        "above 1 (say, 10), or 0 to leave out only what is not finite",
        options.spike_factor);
  }
}

// What an optimizer of one's own takes the place of has no effect beside it.
void check_own_optimizer(const TrainerOptions& options) {
  if (!options.make_optimizer) {
    return;
  }
  const TrainerOptions usual;
  const auto refuse = [](const char* name) {
    throw UsageError(
        "trainer: {} is set, but has no effect beside make_optimizer; set it in the optimizer that "
        "make_optimizer makes, and leave it as it is here",
        name);
  };
  const std::pair<const char*, bool> settings[] = {
      {"optimizer", options.optimizer != usual.optimizer},
      {"lr", options.lr != usual.lr},
      {"weight_decay", options.weight_decay != usual.weight_decay},
      {"beta1", options.beta1 != usual.beta1},
      {"beta2", options.beta2 != usual.beta2},
      {"eps", options.eps != usual.eps},
      {"momentum", options.momentum != usual.momentum},
      {"groups", !options.groups.empty()}};
  for (const auto& [name, is_set] : settings) {
    if (is_set) {
      refuse(name);
    }
  }
}

const char* name_of(Precision value) {
  static constexpr const char* kNames[] = {"float32", "bfloat16", "float16"};
  return kNames[static_cast<int>(value)];
}

const char* name_of(OptimizerKind value) {
  static constexpr const char* kNames[] = {"adamw", "sgd", "lion"};
  return kNames[static_cast<int>(value)];
}

const char* name_of(Schedule value) {
  static constexpr const char* kNames[] = {"constant", "linear", "cosine"};
  return kNames[static_cast<int>(value)];
}

const char* name_of(TrainGraph value) {
  return value == TrainGraph::Auto ? "auto" : "off";
}

const char* name_of(BadStepRule value) {
  return value == BadStepRule::Skip ? "skip" : "stop";
}

std::string samples_in(const std::shared_ptr<const Dataset>& data) {
  return data ? fmt::format("{} samples", data->size()) : "no data";
}

std::vector<std::string> describe(const TrainerOptions& options, const TrainerData& data) {
  return {
      fmt::format("{} to train on", samples_in(data.train)),
      fmt::format("{} held out", samples_in(data.held_out)),
      fmt::format("batch_size = {}", options.batch_size),
      fmt::format("accumulate = {}", options.accumulate),
      fmt::format("shards = {}", options.shards),
      fmt::format("epochs = {}", options.epochs),
      fmt::format("max_steps = {}", options.max_steps),
      fmt::format("max_time = {} s", options.max_time.count()),
      fmt::format("early_stop = {}", options.early_stop),
      fmt::format("device = {}", setting_name(options.device)),
      fmt::format("deterministic = {}", options.deterministic),
      fmt::format("graph = {}", name_of(options.graph)),
      fmt::format("precision = {}", name_of(options.precision)),
      fmt::format("seed = {}", options.seed),
      fmt::format("optimizer = {}", name_of(options.optimizer)),
      fmt::format("lr = {}", options.lr),
      fmt::format("weight_decay = {}", options.weight_decay),
      fmt::format("beta1 = {}", options.beta1),
      fmt::format("beta2 = {}", options.beta2),
      fmt::format("eps = {}", options.eps),
      fmt::format("momentum = {}", options.momentum),
      options.make_optimizer ? "a make_optimizer" : "no make_optimizer",
      fmt::format("{} parameter groups", options.groups.size()),
      fmt::format("schedule = {}", name_of(options.schedule)),
      fmt::format("warmup_steps = {}", options.warmup_steps),
      fmt::format("min_lr_share = {}", options.min_lr_share),
      fmt::format("clip_norm = {}", options.clip_norm),
      fmt::format("ema_decay = {}", options.ema_decay),
      fmt::format("on_bad_step = {}", name_of(options.on_bad_step)),
      fmt::format("spike_factor = {}", options.spike_factor),
      fmt::format("max_bad_steps = {}", options.max_bad_steps),
      fmt::format("eval_every = {}", options.eval_every),
      fmt::format("log_every = {}", options.log_every),
      fmt::format("threads = {}", options.threads),
      options.checkpoint_dir.empty() ? "no checkpoint_dir" : "a checkpoint_dir",
      fmt::format("checkpoint_every = {}", options.checkpoint_every),
      fmt::format("keep_best = {}", options.keep.keep_best),
      fmt::format("resume = {}", options.resume),
  };
}

}  // namespace

void check_run(const TrainerOptions& options, const TrainerData& data) {
  if (!data.train) {
    throw UsageError("trainer: there is nothing to train on: TrainerData::train is null");
  }
  if (data.held_out && data.held_out->size() == 0) {
    throw UsageError(
        "trainer: there is nothing to judge by: TrainerData::held_out has no samples; leave it "
        "null to judge nothing");
  }
  if (options.checkpoint_every > 0 && options.checkpoint_dir.empty()) {
    throw UsageError(
        "trainer: a checkpoint every {} steps is asked for, but no folder for it; set "
        "checkpoint.dir",
        options.checkpoint_every);
  }
  check_values(options.values);
  check_length(options);
  check_update(options);
  check_own_optimizer(options);
}

void check_same_run(Group& group, const TrainerOptions& options, const TrainerData& data) {
  if (group.size() > 1) {
    ddp::check_same_lines(group, describe(options, data),
                          {.what = "trainer: the run differs between ranks",
                           .advice = "give every rank the same options and the whole dataset: the "
                                     "trainer deals the samples out itself"});
  }
}

}  // namespace lockstep::train
