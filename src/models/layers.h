#pragma once

// The layers that the models are made of. libtorch's own draw first weights in their constructors,
// from the global generator and at a cost that matters for a billion of parameters; these leave
// their memory as it came, and init.h fills it. Names and shapes are PyTorch's.

#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/pimpl.h>

#include <lockstep/models/model_config.h>

namespace lockstep::models::layers {

// x W^T + b
class LinearImpl : public torch::nn::Module {
 public:
  LinearImpl(int64_t in, int64_t out);
  at::Tensor forward(const at::Tensor& x) const;

 private:
  at::Tensor weight_, bias_;
};
TORCH_MODULE(Linear);

// x W + b: GPT-2's linear layer, whose weight is [in, out].
class Conv1DImpl : public torch::nn::Module {
 public:
  Conv1DImpl(int64_t in, int64_t out);
  at::Tensor forward(const at::Tensor& x) const;

 private:
  at::Tensor weight_, bias_;
};
TORCH_MODULE(Conv1D);

// It has no bias, and is padded so that the stride alone decides the size.
class Conv2dImpl : public torch::nn::Module {
 public:
  Conv2dImpl(int64_t in, int64_t out, int64_t kernel_size, int64_t stride = 1);
  at::Tensor forward(const at::Tensor& x_BCHW) const;

 private:
  at::Tensor weight_;
  int64_t stride_, padding_;
};
TORCH_MODULE(Conv2d);

class LayerNormImpl : public torch::nn::Module {
 public:
  LayerNormImpl(int64_t size, double eps);
  at::Tensor forward(const at::Tensor& x) const;

 private:
  at::Tensor weight_, bias_;
  double eps_;
};
TORCH_MODULE(LayerNorm);

class EmbeddingImpl : public torch::nn::Module {
 public:
  // `padding` gets no gradient as an input; -1: every row does.
  EmbeddingImpl(int64_t num_rows, int64_t size, int64_t padding = -1);
  at::Tensor forward(const at::Tensor& ids) const;
  const at::Tensor& weight() const { return weight_; }

 private:
  at::Tensor weight_;
  int64_t padding_;
};
TORCH_MODULE(Embedding);

at::Tensor activate(const at::Tensor& x, Activation activation);

struct AttentionOptions {
  int64_t num_heads = 1;
  double dropout = 0;  // of the attention's weights; 0 unless it trains
  bool causal = false;
  at::Tensor mask;  // bool, broadcast to [batch, heads, time, time]: who may be looked at
};

// Scaled dot-product attention: [batch, time, hidden] each -> the same.
at::Tensor attend(const at::Tensor& query_BTE, const at::Tensor& key_BTE,
                  const at::Tensor& value_BTE, const AttentionOptions& options);

// Throws UsageError unless `ids_BT` is int64 [batch, time] and at most `max_positions` long (0: any
// length).
void check_ids(const char* model, const at::Tensor& ids_BT, int64_t max_positions);

// 0, 1, ..., time - 1, for embeddings of positions.
at::Tensor positions_of(const at::Tensor& ids_BT);

// Registers `modules` as "name.0", "name.1", ...
template <typename Layer>
void register_list(torch::nn::Module& parent, const std::string& name,
                   const std::vector<std::shared_ptr<Layer>>& modules) {
  torch::nn::ModuleList list;
  for (const auto& module : modules) {
    list->push_back(module);
  }
  parent.register_module(name, list);
}

}  // namespace lockstep::models::layers
