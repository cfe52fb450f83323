#pragma once

// GPT-2: the causal language model, in all four sizes.
//
//   lockstep::GPT2
//   model(std::get<lockstep::GPT2Options>(lockstep::builtin_config("gpt2").options)); auto logits =
//   model(ids);                                // [batch, time] -> [..., 50257]
//   lockstep::next_token_loss(logits, ids).backward();
//
// transformers' GPT2LMHeadModel: the same names, the same numbers. Weights of its "Conv1D" stay
// [in, out], so that files load without transposition. The output layer is the embedding
// (`transformer.wte.weight`): `lm_head.weight` is a second name for it and no parameter here.
//
// A shorter sequence is padded on the right, where no token before it sees the padding: no mask is
// needed, only labels of kIgnoredLabel.
//
// First weights: normal with standard deviation initializer_range, biases 0, LayerNorm 1 and 0; the
// layers that end in the residual sum (c_proj) get initializer_range / sqrt(2 * num_layers).
//
// Threads: as torch::nn::Module, one at a time.

#include <memory>

#include <ATen/core/Tensor.h>
#include <torch/nn/pimpl.h>

#include <lockstep/models/configured_module.h>
#include <lockstep/models/loss.h>

namespace lockstep {

namespace models::layers {
class GPT2Body;
}

class GPT2Impl : public ConfiguredModule {
 public:
  // Throws UsageError when an option is out of range.
  explicit GPT2Impl(GPT2Options options = {});

  // int64 [batch, time] -> logits [batch, time, vocab_size]. Throws UsageError if `time` is more
  // than max_positions.
  at::Tensor forward(const at::Tensor& ids_BT);

 private:
  std::shared_ptr<models::layers::GPT2Body> transformer_;
};
TORCH_MODULE(GPT2);

}  // namespace lockstep
