#include "models/parameter_hash.h"

#include <torch/nn/module.h>

#include "base/hash.h"

namespace lockstep::models {
namespace {

void add(base::Fnv1a& hash, const at::Tensor& tensor) {
  const at::Tensor dense = tensor.detach().cpu().contiguous();
  hash.add({static_cast<const std::byte*>(dense.const_data_ptr()), dense.nbytes()});
}

}  // namespace

uint64_t hash_parameters(const torch::nn::Module& module) {
  base::Fnv1a hash;
  for (const at::Tensor& parameter : module.parameters()) {
    add(hash, parameter);
  }
  for (const at::Tensor& buffer : module.buffers()) {
    add(hash, buffer);
  }
  return hash.value();
}

int64_t num_parameters(const torch::nn::Module& module) {
  int64_t count = 0;
  for (const at::Tensor& parameter : module.parameters()) {
    count += parameter.numel();
  }
  return count;
}

}  // namespace lockstep::models
