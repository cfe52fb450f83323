#pragma once

// The layers that the models are made of. libtorch's own draw first weights in their constructors,
// from the global generator and at a cost that matters for a billion of parameters; these leave
// their memory as it came, and init.h fills it. Names and shapes are PyTorch's.
//
// On a GPU what is between two matrix products is one kernel (device/functions/functions.h); on the
// CPU it is libtorch's operators. The models are written once: the layers choose.

#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/pimpl.h>

#include <lockstep/models/model_config.h>

namespace lockstep::models::layers {

// What a linear layer computes for the next function to take. Where functions are fused, `bias` is
// in the values already, but has no gradient from them: the next function adds it up in a pass that
// it makes anyway. Else it is undefined.
struct Projected {
  at::Tensor values;
  at::Tensor bias = {};
};

// What linear layers have in common.
class AffineImpl : public torch::nn::Module {
 public:
  at::Tensor forward(const at::Tensor& x) const { return product(x, bias_); }
  // For residual_norm() and activate() alone: they see to the gradient of the bias.
  Projected project(const at::Tensor& x) const;

  const at::Tensor& weight() const { return weight_; }
  const at::Tensor& bias() const { return bias_; }

 protected:
  AffineImpl(at::IntArrayRef weight_sizes, int64_t out);

  at::Tensor weight_, bias_;

 private:
  virtual at::Tensor product(const at::Tensor& x, const at::Tensor& bias) const = 0;
};

// x W^T + b
class LinearImpl : public AffineImpl {
 public:
  LinearImpl(int64_t in, int64_t out) : AffineImpl({out, in}, out) {}

 private:
  at::Tensor product(const at::Tensor& x, const at::Tensor& bias) const override;
};
TORCH_MODULE(Linear);

// x W + b: GPT-2's linear layer, whose weight is [in, out].
class Conv1DImpl : public AffineImpl {
 public:
  Conv1DImpl(int64_t in, int64_t out) : AffineImpl({in, out}, out) {}

 private:
  at::Tensor product(const at::Tensor& x, const at::Tensor& bias) const override;
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

// A residual stream before its next norm.
struct Residual {
  at::Tensor x;
  Projected branch = {};  // still to be added to x; its values may be undefined
  double dropout = 0;     // of the branch; 0 unless it trains
};
struct NormedSum {
  at::Tensor sum;  // x + dropout(branch)
  at::Tensor normed;
};

class LayerNormImpl : public torch::nn::Module {
 public:
  LayerNormImpl(int64_t size, double eps);
  at::Tensor forward(const at::Tensor& x) const { return of_sum({.x = x}).normed; }
  NormedSum of_sum(const Residual& residual) const;

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
  int64_t padding() const { return padding_; }

 private:
  at::Tensor weight_;
  int64_t padding_;
};
TORCH_MODULE(Embedding);

struct Tables {
  const EmbeddingImpl& tokens;
  const EmbeddingImpl* positions = nullptr;  // or none
  const EmbeddingImpl* segments = nullptr;   // or none
  at::Tensor segment_ids = {};               // like the ids, with segments
  double dropout = 0;                        // 0 unless it trains
};

// dropout(tokens + segments + positions) of ids [batch, time] -> [batch, time, hidden].
at::Tensor embed(const at::Tensor& ids_BT, const Tables& tables);

at::Tensor activate(const at::Tensor& x, Activation activation);

// activation(layer(x))
at::Tensor activate(const AffineImpl& layer, const at::Tensor& x, Activation activation);

// x W^T + b for the words of a vocabulary; `bias` may be undefined. Strides may be such that rows
// are apart.
at::Tensor word_scores(const at::Tensor& x_BTE, const at::Tensor& weight_VE,
                       const at::Tensor& bias_V = {});

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
