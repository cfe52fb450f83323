// A run to be killed, on any number of ranks: kill_job FOLDER, or `kill_job FOLDER own` with an
// optimizer of libtorch's in the place of AdamW. All that makes going on hard is in it: dropout,
// BatchNorm, an optimizer with a memory, an average of parameters, pieces that add up, epochs that
// end between two checkpoints. Rank 0 says "step N HASH" after each step and "resumed N HASH" where
// it goes on; the hash is of all parameters and buffers.

#include <iostream>

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/rmsprop.h>

#include <lockstep/comm/init.h>
#include <lockstep/train/trainer.h>

#include "models/parameter_hash.h"

namespace {

struct NetImpl : torch::nn::Module {
  explicit NetImpl(int64_t width) {
    first = register_module("first", torch::nn::Linear(8, width));
    norm = register_module("norm", torch::nn::BatchNorm1d(width));
    middle = register_module("middle", torch::nn::Linear(width, width));
    last = register_module("last", torch::nn::Linear(width, 4));
    const at::NoGradGuard no_grad;
    for (at::Tensor& parameter : parameters()) {
      const at::Tensor waves = at::arange(parameter.numel(), at::kFloat).mul(0.7).sin().mul(0.1);
      parameter.copy_(waves.reshape(parameter.sizes()));
    }
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor hidden = at::dropout(norm(first(x)).relu(), 0.3, is_training());
    return last(middle(hidden).relu());
  }
  torch::nn::Linear first{nullptr}, middle{nullptr}, last{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};
TORCH_MODULE(Net);

class Task : public lockstep::TrainingTask {
 public:
  std::shared_ptr<torch::nn::Module> module() const override { return net_.ptr(); }
  lockstep::TaskOutput forward(const lockstep::Batch& batch) override {
    return lockstep::classify(net_(batch.input), batch.target);
  }

 private:
  Net net_{384};  // 2.4 MB of state: a checkpoint takes long enough to be hit
};

void say(const char* what, int64_t step, const Task& task) {
  std::cout << fmt::format("{} {} {:016x}\n", what, step,
                           lockstep::models::hash_parameters(*task.module()))
            << std::flush;
}

// RMSprop with all that it can remember, the vectors in a group of their own.
std::unique_ptr<torch::optim::Optimizer> make_optimizer(torch::nn::Module& module) {
  using Options = torch::optim::RMSpropOptions;
  std::vector<at::Tensor> matrices, vectors;
  for (const at::Tensor& parameter : module.parameters()) {
    (parameter.dim() >= 2 ? matrices : vectors).push_back(parameter);
  }
  const Options options = Options(0.001).momentum(0.8).centered(true);
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(matrices, std::make_unique<Options>(options));
  groups.emplace_back(vectors, std::make_unique<Options>(Options(options).lr(0.0005)));
  return std::make_unique<torch::optim::RMSprop>(groups, options);
}

}  // namespace

int main(int argc, char** argv) {
  lockstep::Group group = lockstep::init();
  Task task;
  const at::Tensor input = at::arange(8 * 150, at::kFloat).mul(1.1).sin().reshape({150, 8});
  const auto data = lockstep::make_dataset({input, input.sum(1).mul(3).remainder(4).to(at::kLong)});
  const auto tells = [&](const char* what, int64_t step) {
    if (group.rank() == 0) {
      say(what, step, task);
    }
  };
  const std::string folder = argc > 1 ? argv[1] : "";
  lockstep::TrainerOptions options{.epochs = 12,
                                   .batch_size = 16,
                                   .accumulate = 2,
                                   .shards = 4,
                                   .lr = 0.01,
                                   .ema_decay = 0.9,
                                   .eval_every = 25,
                                   .log_every = 1,
                                   .workers = 1,
                                   .checkpoint_dir = folder,
                                   .checkpoint_every = folder.empty() ? 0 : 3};
  if (argc > 2) {
    options.lr = lockstep::TrainerOptions().lr;
    options.make_optimizer = make_optimizer;
  }
  lockstep::Trainer trainer(
      task, {.train = data, .held_out = data}, group, options,
      {.on_resume = [&](int64_t step, const std::string&) { tells("resumed", step); },
       .on_step = [&](const lockstep::StepReport& report) { tells("step", report.step); }});
  const lockstep::TrainResult result = trainer.run();
  tells("ended", result.steps);
  return result.same_bits() ? 0 : 1;
}
