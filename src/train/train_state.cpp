#include "train/train_state.h"

#include <cmath>
#include <limits>
#include <sstream>

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/module.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

#include "base/env.h"
#include "base/parse_real.h"
#include "train/data_fingerprint.h"
#include "train/data_order.h"
#include "train/step/average.h"
#include "train/step/bad_steps.h"
#include "train/step/optimizer.h"
#include "train/step/precision.h"

namespace lockstep::train {
namespace {

using Values = std::map<std::string, std::string>;

// Under which tensors lie.
constexpr const char* kModelPrefix = "model.";
constexpr const char* kOptimizerPrefix = "optimizer.";
constexpr const char* kAveragePrefix = "average.";

// What info() writes beside a program's own values.
constexpr const char* kOwnKeys[] = {
    "step",      "shards",     "threads",     "device",    "best", "stale_evaluations",
    "bad_steps", "loss_scale", "description", "optimizer", "data"};

// Of what description_of() says, so that it is told from a program's own value: that was allowed
// before there was this one.
constexpr const char* kOptimizerStart = "optimizer = ";

const std::string& value(const Checkpoint& checkpoint, const std::string& key) {
  const Values& values = checkpoint.info().values;
  const auto found = values.find(key);
  if (found == values.end()) {
    throw FormatError("{}: there is no value \"{}\": it is not a checkpoint of a training run",
                      checkpoint.path(), key);
  }
  return found->second;
}

int64_t whole(const Checkpoint& checkpoint, const std::string& key, int64_t min, int64_t max) {
  const std::string& text = value(checkpoint, key);
  const auto number = base::parse_integer(text, min, max);
  if (!number) {
    throw FormatError("{}: {} is \"{}\", not a number from {} to {}", checkpoint.path(), key, text,
                      min, max);
  }
  return *number;
}

std::string best_text(const std::optional<Evaluation>& best) {
  return !best ? ""
               : fmt::format("{} {} {} {}", best->step, best->loss, best->num_counted,
                             best->num_correct);
}

std::optional<Evaluation> parse_best(const std::string& text) {
  if (text.empty()) {
    return std::nullopt;
  }
  Evaluation best{.is_best = true};
  std::string loss;
  std::istringstream stream(text);
  stream >> best.step >> loss >> best.num_counted >> best.num_correct;
  const auto value = base::parse_real(loss);
  if (!stream || !value) {
    throw FormatError("the checkpoint's best evaluation is \"{}\", not four numbers", text);
  }
  best.loss = *value;
  return best;
}

// "[section] key" and the value, of lines of TOML.
std::map<std::string, std::string> settings_of(const std::string& text) {
  std::map<std::string, std::string> settings;
  std::istringstream lines(text);
  std::string section;
  for (std::string line; std::getline(lines, line);) {
    const size_t equals = line.find(" = ");
    if (equals == std::string::npos) {
      section = line + " ";
    } else {
      settings[section + line.substr(0, equals)] = line.substr(equals + 3);
    }
  }
  return settings;
}

// Both without the settings that the other's version does not know; see description_defaults.
void drop_unknown(const TrainerOptions& options, std::string& then, std::string& now) {
  const auto old = settings_of(then), present = settings_of(now);
  const auto usual = settings_of(options.description_defaults);
  then.clear();
  now.clear();
  for (const auto& [key, value] : present) {
    const auto before = old.find(key);
    const auto fallback = usual.find(key);
    now += fmt::format("{} = {}\n", key, value);
    then += fmt::format("{} = {}\n", key,
                        before != old.end()       ? before->second
                        : fallback != usual.end() ? fallback->second
                                                  : "");
  }
}

// The first line that differs, of each.
std::pair<std::string, std::string> first_difference(const std::string& a, const std::string& b) {
  std::istringstream lines_a(a), lines_b(b);
  std::string line_a, line_b;
  do {
    line_a.clear();
    line_b.clear();
    std::getline(lines_a, line_a);
    std::getline(lines_b, line_b);
  } while (line_a == line_b && (lines_a || lines_b));
  return {line_a, line_b};
}

// choose_shards() compares their number: `shards = 0` on two ranks is `shards = 2`.
std::string without_shards(const std::string& description) {
  std::istringstream lines(description);
  std::string rest;
  for (std::string line; std::getline(lines, line);) {
    rest += line.starts_with("shards = ") ? "" : line + "\n";
  }
  return rest;
}

[[noreturn]] void refuse_shards(const Checkpoint& checkpoint, int before, int wanted,
                                int num_ranks) {
  throw UsageError(
      "{} is of a run whose steps are cut into {} (train.shards, or the number of ranks it began "
      "on), and {}: the sums would have another order and the result other bits. Go on with {}, or "
      "allow other bits: --allow-other-bits (checkpoint.allow_other_bits = true). A run that "
      "begins "
      "with --shards S, a power of two, moves between all numbers of ranks that divide S without a "
      "changed bit",
      checkpoint.path(), before == 1 ? "1 shard" : fmt::format("{} shards", before),
      wanted == num_ranks
          ? fmt::format("{} cannot be dealt to {} ranks", before == 1 ? "it" : "they", num_ranks)
          : fmt::format("this one is to have {}", wanted),
      before == 1 ? "1 rank" : fmt::format("{} ranks", before));
}

void append(std::vector<NamedTensor>& all, const std::string& prefix,
            std::vector<NamedTensor> part) {
  for (NamedTensor& item : part) {
    all.push_back({prefix + item.name, std::move(item.tensor)});
  }
}

std::vector<NamedTensor> all_tensors(const TrainState& state,
                                     std::vector<NamedTensor> of_optimizer) {
  std::vector<NamedTensor> all;
  for (const auto& item : state.module.named_parameters()) {
    all.push_back({kModelPrefix + item.key(), item.value().detach()});
  }
  for (const auto& item : state.module.named_buffers()) {
    all.push_back({kModelPrefix + item.key(), item.value()});
  }
  append(all, kOptimizerPrefix, std::move(of_optimizer));
  append(all, kAveragePrefix, state.average.state());
  return all;
}

void check_same_run(const Checkpoint& checkpoint, const TrainerOptions& options) {
  std::string then = without_shards(value(checkpoint, "description"));
  std::string now = without_shards(options.description);
  if (!options.description_defaults.empty()) {
    drop_unknown(options, then, now);
  }
  if (then != now) {
    const auto [line_then, line_now] = first_difference(then, now);
    throw UsageError(
        "{} is a checkpoint of another run: it has `{}`, this run has `{}`; give this run a "
        "checkpoint folder of its own",
        checkpoint.path(), line_then, line_now);
  }
}

std::string description_of(const Optimizer& optimizer) {
  std::string text;
  for (const std::string& line : optimizer.description()) {
    text += line + "\n";
  }
  return text;
}

// Checkpoints of older versions do not say: they are of an optimizer of ours without groups.
void check_same_optimizer(const Checkpoint& checkpoint, const Optimizer& optimizer) {
  const Values& values = checkpoint.info().values;
  const auto saved = values.find("optimizer");
  const bool is_said = saved != values.end() && saved->second.starts_with(kOptimizerStart);
  const std::string now = description_of(optimizer);
  const bool is_plain = optimizer.description().size() == 1;
  if (is_said ? saved->second == now : is_plain) {
    return;
  }
  const std::string then = is_said ? saved->second : "no parameter groups and no make_optimizer\n";
  const auto [line_then, line_now] = first_difference(then, now);
  throw UsageError(
      "{} is a checkpoint of a run with another optimizer or other parameter groups: it has `{}`, "
      "this run has `{}`; give this run the optimizer and the groups that it began with, or a "
      "checkpoint folder of its own",
      checkpoint.path(), line_then, line_now);
}

void check_same_data(const Checkpoint& checkpoint, const TrainerOptions& options,
                     const Group& group) {
  const Values& values = checkpoint.info().values;
  const auto saved = values.find("data");
  if (saved == values.end()) {
    if (group.rank() == 0) {
      log::warn("train",
                "{} does not say what data it was trained on (lockstep kept no fingerprint of them "
                "then): whether they are the same was not compared",
                checkpoint.path());
    }
    return;
  }
  const std::string difference = fingerprint_difference(saved->second, options.data_fingerprint);
  if (difference.empty()) {
    return;
  }
  if (!options.allow_other_data) {
    throw UsageError(
        "{} was trained on other data: {}; bring the old data back, or go on with these by "
        "--allow-other-data (checkpoint.allow_other_data = true), or give this run a checkpoint "
        "folder of its own",
        checkpoint.path(), difference);
  }
  if (group.rank() == 0) {
    log::warn("train", "{} was trained on other data: {}; going on, as allow_other_data says",
              checkpoint.path(), difference);
  }
}

}  // namespace

std::vector<NamedTensor> TrainState::tensors_to_save() const {
  std::vector<NamedTensor> all = all_tensors(*this, optimizer.state());
  const size_t first = module.named_parameters().size();
  for (size_t i = first; i < first + module.named_buffers().size(); ++i) {
    all[i].tensor = all[i].tensor.clone();
  }
  return all;
}

CheckpointInfo TrainState::info(const TrainerOptions& options) const {
  CheckpointInfo info{.step = progress.step, .values = options.values, .score = {}};
  info.values["step"] = fmt::format("{}", progress.step);
  info.values["shards"] = fmt::format("{}", progress.shards);
  info.values["threads"] = fmt::format("{}", progress.threads);
  info.values["device"] = progress.device;
  info.values["best"] = best_text(progress.best);
  info.values["stale_evaluations"] = fmt::format("{}", progress.num_stale);
  info.values["bad_steps"] = bad_steps.state();
  info.values["loss_scale"] = loss_scale.state();
  info.values["description"] = options.description;
  info.values["optimizer"] = description_of(optimizer);
  info.values["data"] = options.data_fingerprint;
  if (progress.best && progress.best->step == progress.step) {
    info.score = score_of(*progress.best);
  }
  return info;
}

void TrainState::restore(const Checkpoint& checkpoint, const TrainerOptions& options,
                         Group& group) {
  check_same_run(checkpoint, options);
  check_same_optimizer(checkpoint, optimizer);
  check_same_data(checkpoint, options, group);
  std::vector<WeightTarget> targets;
  for (NamedTensor& item : all_tensors(*this, optimizer.begin_restore())) {
    targets.push_back({std::move(item.name), std::move(item.tensor)});
  }
  const at::NoGradGuard no_grad;
  checkpoint.load(targets, group);
  optimizer.end_restore();
  progress.step = whole(checkpoint, "step", 0, std::numeric_limits<int64_t>::max());
  progress.best = parse_best(value(checkpoint, "best"));
  progress.num_stale =
      whole(checkpoint, "stale_evaluations", 0, std::numeric_limits<int64_t>::max());
  bad_steps.restore(value(checkpoint, "bad_steps"));
  loss_scale.restore(value(checkpoint, "loss_scale"));
}

void check_values(const std::map<std::string, std::string>& values) {
  for (const char* key : kOwnKeys) {
    if (values.contains(key)) {
      throw UsageError(
          "trainer: TrainerOptions::values has the key \"{}\", under which the trainer keeps its "
          "own in every checkpoint; give yours another name than {}",
          key, fmt::join(kOwnKeys, ", "));
    }
  }
}

// An average has a tied weight under the first of its names alone: under another one the raw
// parameter would be loaded over it.
void load_model(const Checkpoint& checkpoint, const torch::nn::Module& module, Group& group,
                const ModelChoice& choice) {
  std::vector<WeightTarget> targets;
  for (const auto& [name, parameter] : unique_parameters(module)) {
    const std::string average = kAveragePrefix + name;
    const bool takes_average = !choice.raw && checkpoint.find(average) != nullptr;
    targets.push_back({takes_average ? average : kModelPrefix + name, parameter.detach()});
  }
  for (const auto& item : module.named_buffers()) {
    targets.push_back({kModelPrefix + item.key(), item.value()});
  }
  const at::NoGradGuard no_grad;
  checkpoint.load(targets, group);
}

int shards_of(const Checkpoint& checkpoint) {
  return static_cast<int>(whole(checkpoint, "shards", 1, std::numeric_limits<int>::max()));
}

int choose_shards(const TrainerOptions& options, const std::optional<Checkpoint>& checkpoint,
                  int num_ranks) {
  if (!checkpoint) {
    return options.shards > 0 ? options.shards : num_ranks;
  }
  const int before = shards_of(*checkpoint);
  if (options.shards > 0 ? options.shards == before : can_be_dealt(before, num_ranks)) {
    return before;
  }
  const int wanted = options.shards > 0 ? options.shards : num_ranks;
  if (!options.allow_other_bits) {
    refuse_shards(*checkpoint, before, wanted, num_ranks);
  }
  return wanted;
}

int threads_of(const Checkpoint& checkpoint) {
  if (checkpoint.info().values.count("threads") == 0) {
    return shards_of(checkpoint) > 1 ? 1 : 0;  // what all runs had before they said so
  }
  return static_cast<int>(whole(checkpoint, "threads", 0, std::numeric_limits<int>::max()));
}

bool is_better(const Evaluation& evaluation, const std::optional<Evaluation>& best) {
  const double score = score_of(evaluation);
  return !std::isnan(score) && (!best || std::isnan(score_of(*best)) || score > score_of(*best));
}

double score_of(const Evaluation& evaluation) {
  return evaluation.num_correct >= 0 ? evaluation.accuracy() : -evaluation.loss;
}

}  // namespace lockstep::train
