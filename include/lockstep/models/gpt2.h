#pragma once

// GPT-2: the causal language model, in all four sizes.
//
// Example:
//   auto config = lockstep::builtin_config("gpt2-medium");
//   lockstep::GPT2 gpt(std::get<lockstep::GPT2Options>(config.options));
//   auto logits = gpt(ids);  // [batch, time] -> [batch, time, 50257]
//   lockstep::next_token_loss(logits, ids).backward();
//
// The class is transformers' GPT2LMHeadModel, with the same names and the same numbers. The weights
// of its "Conv1D" layers stay [in, out], so that files load without a transposition. The output
// layer is the embedding (`transformer.wte.weight`): `lm_head.weight` is a second name for it and
// no parameter here.
//
// A shorter sequence is padded on the right, where no token before it sees the padding. So no mask
// is needed, only labels of kIgnoredLabel.
//
// Initial weights are normal with standard deviation initializer_range, biases are 0, and LayerNorm
// is 1 and 0. The layers that end in the residual sum (c_proj) get
// initializer_range / sqrt(2 * num_layers).
//
// Threads: one thread at a time, as for torch::nn::Module.

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

  // Turns int64 ids [batch, time] into logits [batch, time, vocab_size]. Throws UsageError if
  // `time` is more than max_positions.
  at::Tensor forward(const at::Tensor& ids_BT);

 private:
  std::shared_ptr<models::layers::GPT2Body> transformer_;
};
TORCH_MODULE(GPT2);

}  // namespace lockstep
