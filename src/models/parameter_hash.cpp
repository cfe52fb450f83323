#include "models/parameter_hash.h"

#include <torch/nn/module.h>

namespace lockstep::models {
namespace {

uint64_t add_bytes(uint64_t hash, const at::Tensor& tensor) {
  const at::Tensor dense = tensor.detach().contiguous();
  const auto* bytes = static_cast<const unsigned char*>(dense.const_data_ptr());
  for (size_t i = 0; i < dense.nbytes(); ++i) {
    hash = (hash ^ bytes[i]) * 0x100000001b3u;
  }
  return hash;
}

}  // namespace

uint64_t hash_parameters(const torch::nn::Module& module) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const at::Tensor& parameter : module.parameters()) {
    hash = add_bytes(hash, parameter);
  }
  for (const at::Tensor& buffer : module.buffers()) {
    hash = add_bytes(hash, buffer);
  }
  return hash;
}

int64_t num_parameters(const torch::nn::Module& module) {
  int64_t count = 0;
  for (const at::Tensor& parameter : module.parameters()) {
    count += parameter.numel();
  }
  return count;
}

}  // namespace lockstep::models
