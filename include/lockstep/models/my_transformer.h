#pragma once

// MyTransformer: the model of somebody who starts from nothing but a seed.
//
//   lockstep::MyTransformer model;                           // seed 42: the same bits on every
//   rank auto logits = model(ids);                                // [batch, time] -> [..., 30000]
//   lockstep::next_token_loss(logits, ids).backward();
//
// Embedding(30000, 512) and learned positions, 12 blocks, LayerNorm, Linear(512, 30000). A block
// adds attention (8 heads, causal) and then a feed-forward (2048, GELU) to its input, each of what
// a LayerNorm made of it (pre-norm). 68.8 million parameters.
//
// Its names are those of a Python module made of nn.Embedding `embedding` and `positions`, a
// ModuleList `layers` of nn.TransformerEncoderLayer(norm_first=True, activation="gelu"),
// nn.LayerNorm `norm` and nn.Linear `fc`, whose state_dict it can load.
//
// First weights: normal with standard deviation 0.02, biases 0, LayerNorm 1 and 0; the two layers
// of a block that end in the sum (out_proj, linear2) get 0.02 / sqrt(2 * num_layers), so that the
// sum of many blocks does not grow. No file is opened and no rank asks another one.
//
// Threads: as torch::nn::Module, one at a time.

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/pimpl.h>

#include <lockstep/models/configured_module.h>
#include <lockstep/models/loss.h>

namespace lockstep {

namespace models::layers {
class EmbeddingImpl;
class LayerNormImpl;
class LinearImpl;
class PreNormBlock;
}  // namespace models::layers

class MyTransformerImpl : public ConfiguredModule {
 public:
  // Throws UsageError when an option is out of range.
  explicit MyTransformerImpl(MyTransformerOptions options = {});

  // int64 [batch, time] -> logits [batch, time, vocab_size]. Throws UsageError if `time` is more
  // than max_positions.
  at::Tensor forward(const at::Tensor& ids_BT);

 private:
  MyTransformerOptions options_;
  std::shared_ptr<models::layers::EmbeddingImpl> embedding_;
  std::shared_ptr<models::layers::EmbeddingImpl> positions_;  // null: the plainest form
  std::vector<std::shared_ptr<models::layers::PreNormBlock>> layers_;
  std::shared_ptr<models::layers::LayerNormImpl> norm_;
  std::shared_ptr<models::layers::LinearImpl> fc_;
};
TORCH_MODULE(MyTransformer);

}  // namespace lockstep
