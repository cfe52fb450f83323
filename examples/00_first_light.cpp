// The smallest whole program: five lines of lockstep around an ordinary libtorch model.
//
//   lockstep run --nproc-per-node 4 build/release/bin/00_first_light

// [readme]
#include <torch/torch.h>

#include <lockstep/lockstep.h>

struct NetImpl : torch::nn::Module {
  NetImpl() { layer = register_module("layer", torch::nn::Linear(8, 1)); }
  torch::Tensor forward(const torch::Tensor& x) { return layer(x); }
  torch::nn::Linear layer{nullptr};
};
TORCH_MODULE(Net);

int main() {
  auto group = lockstep::init();  // RANK, ...; a group of one if unset
  Net model;
  lockstep::DistributedDataParallel ddp(model, group);  // broadcasts rank 0, hooks the gradients
  torch::manual_seed(0);                                // the same data on every rank
  auto input = torch::randn({1024, 8});
  lockstep::TensorDataset data{input, input.sum(1, /*keepdim=*/true)};
  lockstep::DistributedSampler sampler(
      {.num_samples = data.size(), .num_ranks = group.size(), .rank = group.rank()});
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  torch::Tensor loss;
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    lockstep::BatchOptions options{.indices = sampler.indices(epoch), .batch_size = 32};
    for (auto batch : lockstep::batches(data, options)) {
      optimizer.zero_grad();
      loss = torch::mse_loss(ddp(batch.input), batch.target);
      loss.backward();   // the all-reduce overlaps this
      optimizer.step();  // same update on every rank
    }
  }
  std::cout << "rank " << group.rank() << ": loss " << loss.item<float>() << std::endl;
}
// [/readme]
