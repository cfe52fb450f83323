#include "bench/gpu/parity_train.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty.h>
#include <torch/optim/sgd.h>

#include <lockstep/ddp/distributed_data_parallel.h>

#include "base/hash.h"
#include "bench/gpu/parity_models.h"

namespace lockstep {
namespace {

constexpr double kLearningRate = 0.01;
constexpr uint64_t kDataSeed = 7;

uint64_t bits_of(const torch::nn::Module& model) {
  base::Fnv1a bits;
  for (const at::Tensor& parameter : model.parameters()) {
    const at::Tensor values = parameter.detach().cpu().contiguous();
    bits.add(base::xxh3({static_cast<const std::byte*>(values.const_data_ptr()), values.nbytes()}));
  }
  return bits.value();
}

bool is_everywhere(Group& group, uint64_t bits) {
  const at::Tensor mine = at::empty({1}, at::kLong);
  *mine.data_ptr<int64_t>() = static_cast<int64_t>(bits);
  const at::Tensor all = at::empty({group.size()}, at::kLong);
  group.all_gather(all, mine);
  return all.eq(mine).all().item<bool>();
}

// Part `number` of `num_parts` of the samples.
BenchBatch part_of(const BenchBatch& batch, int64_t number, int64_t num_parts) {
  const int64_t samples = batch.input.size(0) / num_parts;
  const int64_t rows = batch.target.size(0) / num_parts;
  return {.input = batch.input.narrow(0, number * samples, samples),
          .target = batch.target.narrow(0, number * rows, rows)};
}

}  // namespace

ParityBatches::ParityBatches(const BenchModel& model) {
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(kDataSeed);
  for (int i = 0; i < kParityBatches; ++i) {
    batches_.push_back(model.make_batch(generator));
  }
}

const BenchBatch& ParityBatches::of_step(int step) const {
  return batches_[static_cast<size_t>(step % kParityBatches)];
}

ParityRun train_for_parity(Group group, const ParityOptions& options) {
  const std::shared_ptr<BenchModel> model = make_parity_model(options.model);
  model->to(options.device);
  Reducer reducer(model, group, {.shards = options.shards});
  torch::optim::SGD optimizer(model->parameters(), kLearningRate);
  const int num_parts = options.shards > 0 ? options.shards : group.size();
  const int first = options.shards > 0 ? reducer.first_shard() : group.rank();
  const int count = options.shards > 0 ? reducer.num_local_shards() : 1;
  const ParityBatches batches(*model);
  ParityRun run;
  for (int step = 0; step < options.steps; ++step) {
    const BenchBatch& batch = batches.of_step(step);
    optimizer.zero_grad();
    double loss_sum = 0;
    for (int part = first; part < first + count; ++part) {
      const BenchBatch own = part_of(batch, part, num_parts);
      reducer.begin_forward();
      const at::Tensor logits = model->forward(own.input.to(options.device));
      reducer.end_forward({logits});
      const at::Tensor loss = at::cross_entropy_loss(logits, own.target.to(options.device));
      loss.backward();
      loss_sum += loss.item<double>();
    }
    optimizer.step();
    const at::Tensor total = at::full({1}, loss_sum / num_parts, at::kDouble);
    group.all_reduce(total);
    run.losses.push_back(total.item<double>());
  }
  run.bits = bits_of(*model);
  run.same_bits = is_everywhere(group, run.bits);
  return run;
}

}  // namespace lockstep
