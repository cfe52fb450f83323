#pragma once

// The names that an example in a public header may assume. Examples are never run: they only have
// to compile and link, so nothing here is ever constructed. See tools/header_examples.py.

#include <iostream>
#include <string>
#include <vector>

#include <torch/torch.h>

#include <lockstep/lockstep.h>

namespace lockstep::docs {

struct MyModelImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& input) { return input; }
};
TORCH_MODULE(MyModel);

struct Assumed {
  // The job and the model.
  Group group;
  MyModel model;
  DistributedDataParallel<MyModel> ddp;
  torch::optim::SGD optimizer;
  static torch::Tensor loss(const torch::Tensor& output, const torch::Tensor& target) {
    return torch::mse_loss(output, target);
  }

  // The data.
  TensorDataset data;
  std::shared_ptr<const Dataset> train_data, test_data;
  DistributedSampler sampler;
  Batch batch, last;
  std::vector<Batch> batches, all_but_last;
  torch::Tensor ids, mask, labels, pictures, x, gradient;
  void read(int64_t /*index*/) {}

  // The loop.
  int64_t epoch, num_steps;
  uint64_t seed;
  void compute() {}
  void train(int64_t /*step*/) {}
  void train_all() {}
  void train_on(const torch::Tensor& /*input*/, const torch::Tensor& /*target*/) {}
  void save(int64_t /*step*/) {}

  // What is stored.
  std::vector<NamedTensor> tensors;
  std::vector<WeightTarget> targets;
  std::string toml, path, key;

  // Numbers.
  int num_ranks, num_buckets;
  double largest_mib;
  size_t offset, size;
};

}  // namespace lockstep::docs
