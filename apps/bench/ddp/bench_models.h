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
  // Returns logits, one row per element of the target.
  virtual at::Tensor forward(const at::Tensor& input) = 0;

  // Both input and target are random.
  virtual BenchBatch make_batch(const at::Generator& generator) const = 0;
};

// mlp: six Linear(1024, 1024), ReLU between them; batch 8.
// convnet: lockstep/models/resnet.h with 18 layers and 1000 classes; 8 pictures of 64 x 64.
// transformer: lockstep/models/my_transformer.h, 3000 words, 4 layers of width 128 (8 heads, FFN
// 512), neither positions nor dropout; batch 8 x 64 tokens. The first values of the first come from
// libtorch's global generator. Throws UsageError for another name.
std::shared_ptr<BenchModel> make_bench_model(const std::string& name);

}  // namespace lockstep
