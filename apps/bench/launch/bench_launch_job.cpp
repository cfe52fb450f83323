#include "bench/launch/bench_launch_job.h"

#include <unistd.h>

#include <ATen/Parallel.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/randn.h>
#include <fmt/format.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <lockstep/base/log.h>
#include <lockstep/comm/init.h>
#include <lockstep/ddp/distributed_data_parallel.h>

#include "base/env.h"
#include "bench/allreduce/bench_rank.h"

namespace lockstep {

namespace nn = torch::nn;

int bench_launch_job() {
  constexpr int kNumSteps = 26;
  constexpr unsigned kPatienceSeconds = 300;  // a rank whose launcher was killed ends by itself
  ::alarm(kPatienceSeconds);
  if (!base::Env().has("LOCKSTEP_LOG_LEVEL")) {
    log::set_level(log::Level::Warn);
  }
  at::set_num_threads(1);
  Group group = init();
  torch::manual_seed(0);
  nn::Sequential model;  // one by one: their first values come in this order, as in Python
  model->push_back(nn::Linear(64, 64));
  model->push_back(nn::ReLU());
  model->push_back(nn::Linear(64, 10));
  DistributedDataParallel ddp(model, group);
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  torch::manual_seed(static_cast<uint64_t>(1 + group.rank()));
  const at::Tensor inputs = at::randn({8, 64});
  const at::Tensor targets = at::arange(8, at::kLong);
  at::Tensor loss;
  for (int step = 0; step < kNumSteps; ++step) {
    optimizer.zero_grad();
    loss = nn::functional::cross_entropy(ddp(inputs), targets);
    loss.backward();
    optimizer.step();
  }
  print_now(
      fmt::format("rank {}: {} steps, loss {:.6f}\n", group.rank(), kNumSteps, loss.item<float>()));
  return 0;
}

}  // namespace lockstep
