#pragma once

// MyTransformer: the model to start from when there is nothing but a seed.
//
// Example:
//   lockstep::MyTransformer transformer;  // seed 42: the same bits on every rank
//   auto logits = transformer(ids);       // [batch, time] -> [batch, time, 30000]
//   lockstep::next_token_loss(logits, ids).backward();
//
// It consists of Embedding(30000, 512) with learned positions, 12 blocks, LayerNorm and Linear(512,
// 30000). A block adds attention (8 heads, causal) and then a feed-forward layer (2048, GELU) to
// its input, and each of them reads that input through a LayerNorm (pre-norm). It has 68.8 million
// parameters.
//
// Its names are those of a Python module with nn.Embedding `embedding` and `positions`, a
// ModuleList `layers` of nn.TransformerEncoderLayer(norm_first=True, activation="gelu"),
// nn.LayerNorm `norm` and nn.Linear `fc`, and it can load that module's state_dict.
//
// Initial weights are normal with standard deviation 0.02, biases are 0, and LayerNorm is 1 and 0.
// The two layers of a block that end in the sum (out_proj, linear2) get
// 0.02 / sqrt(2 * num_layers), so that the sum of many blocks does not grow. No file is opened, and
// ranks do not communicate.
//
// Threads: one thread at a time, as for torch::nn::Module.

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

  // Turns int64 ids [batch, time] into logits [batch, time, vocab_size]. Throws UsageError if
  // `time` is more than max_positions.
  at::Tensor forward(const at::Tensor& ids_BT);

 private:
  MyTransformerOptions options_;
  std::shared_ptr<models::layers::EmbeddingImpl> embedding_;
  std::shared_ptr<models::layers::EmbeddingImpl> positions_;  // null if max_positions is 0
  std::vector<std::shared_ptr<models::layers::PreNormBlock>> layers_;
  std::shared_ptr<models::layers::LayerNormImpl> norm_;
  std::shared_ptr<models::layers::LinearImpl> fc_;
};
TORCH_MODULE(MyTransformer);

}  // namespace lockstep
