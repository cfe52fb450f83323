// Shapes: B batch, V classes (not a cat, a cat).
#include "train/cats_job.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <numbers>
#include <set>
#include <unistd.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randperm.h>
#include <ATen/ops/tensor.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <lockstep/base/error.h>
#include <lockstep/data/batches.h>
#include <lockstep/data/distributed_sampler.h>
#include <lockstep/ddp/distributed_data_parallel.h>

#include "base/env.h"
#include "base/process.h"
#include "base/stopwatch.h"
#include "data/cat_pictures.h"
#include "data/picture_jitter.h"
#include "models/parameter_hash.h"
#include "models/small_convnet.h"
#include "train/score.h"

namespace lockstep {
namespace {

uint64_t unsigned_seed(int64_t seed) {
  return static_cast<uint64_t>(seed);
}

TensorDataset training_pictures(const CatsConfig& config) {
  TensorDataset pictures = draw_cat_pictures(
      {.num_pictures = config.num_pictures, .seed = unsigned_seed(config.data_seed)});
  if (config.shuffle_labels) {
    const auto generator = at::make_generator<at::CPUGeneratorImpl>(unsigned_seed(config.seed));
    const auto order =
        at::randperm(pictures.size(), generator, at::TensorOptions().dtype(at::kLong));
    pictures.target = pictures.target.index_select(0, order);
  }
  return pictures;
}

SmallConvnet make_model(const CatsConfig& config) {
  return SmallConvnet(SmallConvnetOptions{.picture_size = kPictureSize,
                                          .in_channels = kPictureChannels,
                                          .channels = config.channels,
                                          .num_classes = kPictureClasses,
                                          .seed = unsigned_seed(config.model_seed)});
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const CatsConfig& config,
                                                        std::vector<at::Tensor> parameters) {
  if (config.optimizer == "sgd") {
    return std::make_unique<torch::optim::SGD>(std::move(parameters),
                                               torch::optim::SGDOptions(config.lr)
                                                   .momentum(config.momentum)
                                                   .weight_decay(config.weight_decay));
  }
  return std::make_unique<torch::optim::AdamW>(
      std::move(parameters),
      torch::optim::AdamWOptions(config.lr).weight_decay(config.weight_decay));
}

// Half a cosine from lr in the first epoch down to lr / 20: large steps to learn, small ones to
// settle.
void set_learning_rate(torch::optim::Optimizer& optimizer, const CatsConfig& config,
                       int64_t epoch) {
  constexpr double kFloor = 0.05;
  const double done = static_cast<double>(epoch) / static_cast<double>(config.epochs);
  const double share = kFloor + (1 - kFloor) * 0.5 * (1 + std::cos(std::numbers::pi * done));
  for (auto& parameters : optimizer.param_groups()) {
    parameters.options().set_lr(config.lr * share);
  }
}

// One pass over this rank's part of the pictures.
Score train_epoch(DistributedDataParallel<SmallConvnet>& ddp, torch::optim::Optimizer& optimizer,
                  const Batches& batches) {
  Score score;
  for (const Batch batch : batches) {
    optimizer.zero_grad();
    const at::Tensor logits_BV = ddp(batch.input);
    const at::Tensor loss = at::cross_entropy_loss(logits_BV, batch.target);
    loss.backward();   // leaves the average of all ranks' gradients in each parameter
    optimizer.step();  // so this step is the same on every rank
    score.add(loss, logits_BV, batch.target);
  }
  return score;
}

// Over all ranks, each picture exactly once: the sampler would not do, it repeats some to deal
// equally.
Score evaluate(SmallConvnet& model, const TensorDataset& pictures, Group& group) {
  constexpr int64_t kBatchSize = 100;
  const at::NoGradGuard no_grad;
  std::vector<int64_t> mine;
  for (int64_t i = group.rank(); i < pictures.size(); i += group.size()) {
    mine.push_back(i);
  }
  Score score;
  for (const Batch batch : batches(pictures, {.indices = mine, .batch_size = kBatchSize})) {
    const at::Tensor logits_BV = model(batch.input);
    score.add(at::cross_entropy_loss(logits_BV, batch.target), logits_BV, batch.target);
  }
  const Score all = sum_over_ranks(score, group);
  LOCKSTEP_CHECK(all.num_seen == pictures.size(), "{} of {} pictures were judged", all.num_seen,
                 pictures.size());
  return all;
}

// Every rank tells every other the bits it ended with, and where it is.
void compare_models(const SmallConvnet& model, int64_t node, Group& group, CatsResult& result) {
  const uint64_t hash = hash_parameters(*model);
  int64_t hash_bits = 0;
  std::memcpy(&hash_bits, &hash, sizeof hash);
  const at::Tensor mine = at::tensor({hash_bits, node}, at::kLong);
  const at::Tensor all = at::empty({group.size() * mine.numel()}, at::kLong);
  group.all_gather(all, mine);
  const int64_t* values = all.const_data_ptr<int64_t>();
  for (int rank = 0; rank < group.size(); ++rank) {
    std::memcpy(&result.parameter_hashes.emplace_back(), values + 2 * rank, sizeof hash);
    result.nodes.push_back(values[2 * rank + 1]);
  }
}

int64_t node_number() {
  return Env().integer("GROUP_RANK", 0, std::numeric_limits<int32_t>::max()).value_or(0);
}

}  // namespace

int CatsResult::num_nodes() const {
  return static_cast<int>(std::set<int64_t>(nodes.begin(), nodes.end()).size());
}

bool CatsResult::same_bits() const {
  return std::all_of(parameter_hashes.begin(), parameter_hashes.end(),
                     [&](uint64_t hash) { return hash == parameter_hashes.front(); });
}

CatsResult train_cats(const CatsConfig& config, Group group, const CatsWatcher& watcher) {
  const Stopwatch job_time;
  const int64_t rank_batch = batch_per_rank(config, group.size());
  if (group.size() > 1) {
    at::set_num_threads(1);  // the ranks share the cores: more threads would only fight for them
  }
  const TensorDataset pictures = training_pictures(config);
  const TensorDataset held_out = draw_cat_pictures(
      {.num_pictures = config.held_out_pictures, .seed = unsigned_seed(config.held_out_seed)});
  const DistributedSampler sampler({.num_samples = pictures.size(),
                                    .num_ranks = group.size(),
                                    .rank = group.rank(),
                                    .seed = unsigned_seed(config.seed)});
  if (watcher.on_start) {
    watcher.on_start({.rank = group.rank(),
                      .num_ranks = group.size(),
                      .node = node_number(),
                      .pid = host_pid(),
                      .rank_pictures = sampler.size(),
                      .num_pictures = pictures.size()});
  }

  SmallConvnet model = make_model(config);
  DistributedDataParallel ddp(model, group);
  const auto optimizer = make_optimizer(config, model->parameters());

  CatsResult result;
  for (int64_t epoch = 0; epoch < config.epochs; ++epoch) {
    const Stopwatch epoch_time;
    const TensorDataset varied{
        jitter_pictures(pictures.input, {.seed = unsigned_seed(config.seed), .epoch = epoch}),
        pictures.target};
    set_learning_rate(*optimizer, config, epoch);
    const Score trained = sum_over_ranks(
        train_epoch(ddp, *optimizer,
                    batches(varied, {.indices = sampler.indices(epoch), .batch_size = rank_batch})),
        group);
    const double train_seconds = epoch_time.seconds();
    const Score judged = evaluate(model, held_out, group);
    result.held_out_correct = judged.num_correct;
    result.last = {.epoch = epoch + 1,
                   .num_epochs = config.epochs,
                   .loss = trained.loss(),
                   .train_accuracy = trained.accuracy(),
                   .held_out_accuracy = judged.accuracy(),
                   .pictures_per_s = static_cast<double>(trained.num_seen) / train_seconds,
                   .seconds = job_time.seconds()};
    if (watcher.on_epoch && group.rank() == 0) {
      watcher.on_epoch(result.last);
    }
  }

  compare_models(model, node_number(), group, result);
  result.held_out_pictures = held_out.size();
  result.num_parameters = num_parameters(*model);
  result.seconds = job_time.seconds();
  return result;
}

}  // namespace lockstep
