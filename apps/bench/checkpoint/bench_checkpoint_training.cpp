#include "bench/checkpoint/bench_checkpoint_training.h"

#include <algorithm>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "base/stopwatch.h"
#include "formats/archive/crc32.h"

namespace lockstep {
namespace {

constexpr uint64_t kSeed = 7;
constexpr double kLearningRate = 1e-4;
constexpr double kMomentum = 0.9;
constexpr int64_t kSequence = 64;  // tokens
constexpr int64_t kMinTokens = 2;  // one is predicted from the other
constexpr int64_t kMaxTokens = 512 * kSequence;
constexpr int64_t kNumWords = 3000;  // of the smallest vocabulary
constexpr int64_t kFloatBytes = 4;

struct TrainingShape {
  int64_t least_state_bytes;
  int64_t width;
  int64_t vocabulary;
};
constexpr TrainingShape kTrainingShapes[] = {
    {4'000'000'000, 1536, 50257}, {256'000'000, 512, 30000}, {0, 128, 3000}};

// Describes a transformer whose parameters and momenta together are not much smaller than the
// state.
MyTransformerOptions model_options(int64_t state_bytes) {
  const TrainingShape& shape = *std::find_if(
      std::begin(kTrainingShapes), std::end(kTrainingShapes),
      [&](const TrainingShape& each) { return state_bytes >= each.least_state_bytes; });
  const int64_t width = shape.width;
  const int64_t layer_parameters = 12 * width * width + 13 * width;
  const int64_t other_parameters =
      2 * shape.vocabulary * width + shape.vocabulary + kSequence * width + 2 * width;
  const int64_t num_layers =
      (state_bytes / (2 * kFloatBytes) - other_parameters) / layer_parameters;
  return {.vocab_size = shape.vocabulary,
          .hidden_size = width,
          .num_layers = std::max<int64_t>(1, num_layers),
          .num_heads = 8,
          .ffn_size = 4 * width,
          .max_positions = kSequence,
          .dropout = 0};
}

}  // namespace

uint32_t checksum_of(const at::Tensor& tensor) {
  return formats::crc32(0,
                        {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()});
}

CheckpointTraining::CheckpointTraining(Group group, const CheckpointBenchPlan& plan)
    : group_(std::move(group)),
      generator_(
          at::make_generator<at::CPUGeneratorImpl>(kSeed + static_cast<uint64_t>(group_.rank()))),
      model_(model_options(plan.state_bytes)),
      ddp_(model_, group_) {
  make_state(plan.state_bytes);
  choose_batch(plan.step_ms);
}

// The state holds parameters and momenta as far as they fit, and a tensor of what is missing.
void CheckpointTraining::make_state(int64_t state_bytes) {
  int64_t left = state_bytes / kFloatBytes;
  const auto add = [&](const std::string& name, const at::Tensor& tensor) {
    if (tensor.numel() <= left) {
      state_.push_back({name, tensor.detach()});
      left -= tensor.numel();
    }
  };
  for (const auto& item : model_->named_parameters()) {
    add("model." + item.key(), item.value());
    momenta_.push_back(at::zeros_like(item.value().detach()));
  }
  size_t number = 0;
  for (const auto& item : model_->named_parameters()) {
    add("momentum." + item.key(), momenta_[number++]);
  }
  rest_ = at::zeros({left});
  if (left > 0) {
    add("rest", rest_);
  }
}

// Takes as many tokens as make the step long enough with all ranks at work. Rank 0's count is for
// all.
void CheckpointTraining::choose_batch(int step_ms) {
  constexpr int kRounds = 5;
  step(nullptr);  // the first one lays the buckets out
  for (int round = 0; round < kRounds; ++round) {
    group_.barrier();
    const base::Stopwatch watch;
    step(nullptr);
    const double pace = step_ms / (watch.seconds() * 1000);
    const at::Tensor number =
        at::full({1}, static_cast<int64_t>(static_cast<double>(num_tokens_) * pace), at::kLong);
    group_.broadcast(number);
    num_tokens_ = std::clamp(*number.const_data_ptr<int64_t>(), kMinTokens, kMaxTokens);
  }
}

void CheckpointTraining::step(CheckpointWriter* writer) {
  const int64_t length = std::min(num_tokens_, kSequence);
  const at::Tensor ids_BT =
      at::randint(kNumWords, {num_tokens_ / length, length}, generator_, at::kLong);
  ddp_.zero_grad();
  next_token_loss(ddp_(ids_BT), ids_BT).backward();
  if (writer != nullptr) {
    writer->wait_captured();
  }
  update();
}

void CheckpointTraining::update() {
  const at::NoGradGuard no_grad;
  const auto parameters = model_->parameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    momenta_[i].mul_(kMomentum).add_(parameters[i].grad());
    parameters[i].add_(momenta_[i], -kLearningRate);
  }
  rest_.add_(1);
}

std::vector<uint32_t> CheckpointTraining::checksums() const {
  std::vector<uint32_t> all;
  for (const NamedTensor& named : state_) {
    all.push_back(checksum_of(named.tensor));
  }
  return all;
}

}  // namespace lockstep
