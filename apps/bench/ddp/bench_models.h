#pragma once

// The models of `lockstep bench ddp`. They are fixed: figures of two versions, or of two machines,
// are of the same work.

#include <memory>
#include <string>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

namespace lockstep {

struct BenchBatch {
  at::Tensor input;
  at::Tensor target;  // int64: the right class of each row of logits
};

class BenchModel : public torch::nn::Module {
 public:
  // Logits, one row per element of the target.
  virtual at::Tensor forward(const at::Tensor& input) = 0;

  // Random input, random target.
  virtual BenchBatch make_batch(const at::Generator& generator) const = 0;
};

// mlp: six Linear(1024, 1024), ReLU between them; batch 8.
// convnet: ResNet-18 with 1000 classes; 8 pictures of 64 x 64.
// transformer: embedding 3000 x 128, 4 pre-norm layers of width 128 (8 heads, causal; FFN 512),
// head 128 x 3000; batch 8 x 64 tokens. First values come from libtorch's global generator. Throws
// UsageError for another name.
std::shared_ptr<BenchModel> make_bench_model(const std::string& name);

}  // namespace lockstep
