#include "train/trainer_config.h"

#include <algorithm>
#include <array>
#include <limits>
#include <sstream>
#include <utility>

#include <lockstep/base/error.h>

#include "train/option_ranges.h"
#include "train/run_device.h"

namespace lockstep::train {
namespace {

template <typename Enum, size_t N>
using NameTable = std::array<std::pair<const char*, Enum>, N>;

constexpr NameTable<Precision, 3> kPrecisions{{{"float32", Precision::Float32},
                                               {"bfloat16", Precision::BFloat16},
                                               {"float16", Precision::Float16}}};
constexpr NameTable<TrainGraph, 2> kGraphs{{{"auto", TrainGraph::Auto}, {"off", TrainGraph::Off}}};
constexpr NameTable<OptimizerKind, 3> kOptimizers{
    {{"adamw", OptimizerKind::AdamW}, {"sgd", OptimizerKind::Sgd}, {"lion", OptimizerKind::Lion}}};
constexpr NameTable<Schedule, 3> kSchedules{
    {{"constant", Schedule::Constant}, {"linear", Schedule::Linear}, {"cosine", Schedule::Cosine}}};
constexpr NameTable<BadStepRule, 2> kBadStepRules{
    {{"skip", BadStepRule::Skip}, {"stop", BadStepRule::Stop}}};

template <typename Enum, size_t N>
void read_choice(base::Config& config, const std::string& key, Enum& value,
                 const NameTable<Enum, N>& names) {
  std::vector<std::string> choices;
  std::string text;
  for (const auto& [name, meaning] : names) {
    choices.emplace_back(name);
    text = meaning == value ? name : text;
  }
  config.read(key, text, choices);
  value = std::find_if(names.begin(), names.end(), [&](const auto& entry) {
            return text == entry.first;
          })->second;
}

template <typename Small>
void read_small(base::Config& config, const std::string& key, Small& value,
                base::Config::Range range) {
  auto wide = static_cast<int64_t>(value);
  config.read(key, wide, range);
  value = static_cast<Small>(wide);
}

void read_length(base::Config& config, TrainerOptions& options) {
  config.read("train.epochs", options.epochs, ranges::kCount);
  config.read("train.max_steps", options.max_steps, {.min = 0});
  int64_t max_time_s = options.max_time.count();
  config.read("train.max_time_s", max_time_s, {.min = 0, .max = 1e9});
  options.max_time = std::chrono::seconds(max_time_s);
  config.read("train.early_stop", options.early_stop, {.min = 0});
}

void read_step(base::Config& config, TrainerOptions& options) {
  config.read("train.batch_size", options.batch_size, ranges::kCount);
  config.read("train.accumulate", options.accumulate, ranges::kCount);
  read_small(config, "train.shards", options.shards, {.min = 0, .max = 1 << 16});
  read_choice(config, "train.device", options.device, kTrainDevices);
  config.read("train.deterministic", options.deterministic);
  read_choice(config, "train.graph", options.graph, kGraphs);
  read_choice(config, "train.precision", options.precision, kPrecisions);
  read_small(config, "train.threads", options.threads, {.min = 0, .max = 1024});
  read_small(config, "train.seed", options.seed, {.min = 0});
  read_small(config, "train.workers", options.workers, {.min = 0, .max = 256});
}

void read_update(base::Config& config, TrainerOptions& options) {
  read_choice(config, "train.optimizer", options.optimizer, kOptimizers);
  config.read("train.lr", options.lr, ranges::kLr);
  config.read("train.weight_decay", options.weight_decay, ranges::kWeightDecay);
  config.read("train.beta1", options.beta1, ranges::kDecay);
  config.read("train.beta2", options.beta2, ranges::kDecay);
  config.read("train.eps", options.eps, ranges::kEps);
  config.read("train.momentum", options.momentum, ranges::kDecay);
  read_choice(config, "train.schedule", options.schedule, kSchedules);
  config.read("train.warmup_steps", options.warmup_steps, {.min = 0});
  config.read("train.min_lr_share", options.min_lr_share, ranges::kShare);
  config.read("train.clip_norm", options.clip_norm, ranges::kNorm);
  config.read("train.ema_decay", options.ema_decay, ranges::kEmaDecay);
  read_choice(config, "train.on_bad_step", options.on_bad_step, kBadStepRules);
  config.read("train.spike_factor", options.spike_factor, ranges::kNorm);
  config.read("train.max_bad_steps", options.max_bad_steps, {.min = 0});
}

// [[train.groups]]
void read_groups(base::Config& config, TrainerOptions& options) {
  for (int i = 0; config.has_section(fmt::format("train.groups.{}", i)); ++i) {
    const std::string place = fmt::format("train.groups.{}", i);
    ParameterGroup group;
    config.read(place + ".name", group.name);
    config.read(place + ".pattern", group.pattern);
    config.read(place + ".lr_scale", group.lr_scale, ranges::kLrScale);
    config.read(place + ".weight_decay", group.weight_decay, ranges::kWeightDecay);
    config.read(place + ".frozen", group.is_frozen);
    for (const auto& [key, value] : {std::pair("name", group.name), {"pattern", group.pattern}}) {
      if (value.empty()) {
        throw UsageError(
            "{0}.{1} is missing: each of [[train.groups]] has a name and a pattern, a regular "
            "expression that is found in the names of its parameters",
            place, key);
      }
    }
    options.groups.push_back(std::move(group));
  }
}

void read_checkpoint(base::Config& config, TrainerOptions& options) {
  config.read_path("checkpoint.dir", options.checkpoint_dir);
  config.read("checkpoint.every", options.checkpoint_every, {.min = 0});
  config.read("checkpoint.keep_last", options.keep.keep_last, {.min = 1, .max = 1e6});
  int64_t keep_every = options.keep.keep_every.count();
  config.read("checkpoint.keep_every_minutes", keep_every, {.min = 0, .max = 1e7});
  options.keep.keep_every = std::chrono::minutes(keep_every);
  config.read("checkpoint.keep_best", options.keep.keep_best);
  config.read("checkpoint.resume", options.resume);
  config.read("checkpoint.allow_other_bits", options.allow_other_bits);
  config.read("checkpoint.allow_other_data", options.allow_other_data);
}

// Keys that may change between a run and its continuation.
constexpr const char* kFree[] = {"epochs", "max_steps", "max_time_s", "early_stop", "device",
                                 "graph",  "threads",   "workers",    "eval_every", "log_every"};

}  // namespace

void read_trainer_options(base::Config& config, TrainerOptions& options) {
  read_length(config, options);
  read_step(config, options);
  read_update(config, options);
  read_groups(config, options);
  config.read("train.eval_every", options.eval_every, {.min = 0});
  config.read("train.log_every", options.log_every, {.min = 1});
  read_checkpoint(config, options);
  if (options.checkpoint_every > 0 && options.checkpoint_dir.empty()) {
    throw UsageError(
        "checkpoint.every = {}, but there is no place for checkpoints: set checkpoint.dir to a "
        "folder or s3://bucket/prefix",
        options.checkpoint_every);
  }
}

const std::map<std::string, std::string>& names_elsewhere() {
  static const std::map<std::string, std::string> names = {
      {"learning_rate", "lr"},
      {"max_lr", "lr"},
      {"wd", "weight_decay"},
      {"adam_beta1", "beta1"},
      {"adam_beta2", "beta2"},
      {"adam_epsilon", "eps"},
      {"epsilon", "eps"},
      {"num_epochs", "epochs"},
      {"num_train_epochs", "epochs"},
      {"steps", "max_steps"},
      {"num_steps", "max_steps"},
      {"bs", "batch_size"},
      {"global_batch_size", "batch_size"},
      {"per_device_train_batch_size", "batch_size"},
      {"gradient_accumulation_steps", "accumulate"},
      {"grad_accum", "accumulate"},
      {"lr_mult", "lr_scale"},
      {"lr_factor", "lr_scale"},
      {"is_frozen", "frozen"},
      {"freeze", "frozen"},
      {"grad_clip", "clip_norm"},
      {"gradient_clip_val", "clip_norm"},
      {"max_grad_norm", "clip_norm"},
      {"warmup", "warmup_steps"},
      {"lr_scheduler", "schedule"},
      {"lr_scheduler_type", "schedule"},
      {"scheduler", "schedule"},
      {"dtype", "precision"},
      {"fp16", "precision"},
      {"bf16", "precision"},
      {"amp", "precision"},
      {"random_seed", "seed"},
      {"num_workers", "workers"},
      {"num_threads", "threads"},
      {"eval_steps", "eval_every"},
      {"eval_interval", "eval_every"},
      {"logging_steps", "log_every"},
      {"log_interval", "log_every"},
      {"patience", "early_stop"},
      {"save_steps", "every"},
      {"save_every", "every"},
      {"output_dir", "dir"},
      {"checkpoint_dir", "dir"},
      {"n_embd", "hidden_size"},
      {"d_model", "hidden_size"},
      {"n_layer", "num_layers"},
      {"num_hidden_layers", "num_layers"},
      {"n_head", "num_heads"},
      {"num_attention_heads", "num_heads"},
      {"intermediate_size", "ffn_size"},
      {"n_positions", "max_positions"},
      {"max_position_embeddings", "max_positions"},
      {"block_size", "sequence_length"},
      {"seq_len", "sequence_length"},
      {"max_seq_length", "max_length"},
      {"val_split", "held_out_share"},
      {"model_name_or_path", "pretrained"},
  };
  return names;
}

namespace {

std::string described(const base::Config& config, const std::string& settings) {
  std::istringstream lines(settings);
  std::string description, section;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with('[')) {
      section = line;
    }
    const std::string key = line.substr(0, line.find(' '));
    const bool is_free = section == "[checkpoint]" ||
                         (section == "[train]" &&
                          std::find(std::begin(kFree), std::end(kFree), key) != std::end(kFree)) ||
                         (!section.empty() && !line.starts_with('[') &&
                          config.is_path(section.substr(1, section.size() - 2) + "." + key));
    if (!is_free && !line.empty()) {
      description += line + "\n";
    }
  }
  return description;
}

}  // namespace

std::string run_description(const base::Config& config) {
  return described(config, config.effective());
}

std::string default_description(const base::Config& config) {
  return described(config, config.defaults());
}

}  // namespace lockstep::train
