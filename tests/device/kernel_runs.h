#pragma once

// The kernels of a training step on tensors: the twins on the CPU and the plug-in's on a GPU by the
// same code, so that one is compared with the other. Arguments and results are on the CPU. Results
// are filled with NaN beforehand, so that an element that a kernel forgets is seen.

#include <vector>

#include <ATen/ATen.h>

#include "device/kernels.h"

namespace lockstep::testing_support {

inline constexpr double kEpsilon = 1e-5;

struct DropoutOf {
  double probability = 0;
  int64_t seed = 0x1234567890abcdef;
  int64_t offset = 77;
  uint32_t site = 5;
};

class KernelRuns {
 public:
  KernelRuns(const LockstepKernels& kernels, at::Device device)
      : kernels_(kernels), device_(device) {}

  struct Norm {
    at::Tensor sum;  // x, if there is no branch
    at::Tensor out;
    at::Tensor mean;
    at::Tensor rstd;
  };
  struct NormInput {
    at::Tensor x;
    at::Tensor branch;  // may be undefined
    at::Tensor weight;
    at::Tensor bias;
    DropoutOf dropout;
  };
  Norm norm_forward(const NormInput& input) const;

  struct NormGradients {
    at::Tensor x;
    at::Tensor branch;
    at::Tensor weight;
    at::Tensor bias;
    at::Tensor branch_bias;
  };
  struct NormGradientsAsked {
    at::Tensor grad_out;
    at::Tensor grad_sum;  // may be undefined
    bool branch = true;
    bool branch_bias = true;
    bool accumulate = false;  // to gradients of 1
  };
  NormGradients norm_backward(const NormInput& input, const Norm& forward,
                              const NormGradientsAsked& asked) const;

  at::Tensor gelu_forward(const at::Tensor& x, int32_t form) const;
  struct GeluGradients {
    at::Tensor x;
    at::Tensor bias;
  };
  GeluGradients gelu_backward(const at::Tensor& x, const at::Tensor& grad_out, int32_t form,
                              bool accumulate = false) const;

  struct Entropy {
    at::Tensor losses;
    at::Tensor result;  // mean and number
    at::Tensor logits;  // what became of them
  };
  struct EntropyOptions {
    int64_t classes = 0;
    bool gradient = true;
    float scale = 1;
  };
  Entropy cross_entropy(const at::Tensor& logits, const at::Tensor& labels,
                        const EntropyOptions& options) const;

  at::Tensor scale(const at::Tensor& x, float factor) const;

  struct EmbeddingInput {
    at::Tensor ids;
    at::Tensor tokens;
    at::Tensor positions;    // may be undefined
    at::Tensor segment_ids;  // may be undefined, with segments
    at::Tensor segments;
    at::ScalarType type = at::kFloat;
    DropoutOf dropout;
  };
  at::Tensor embedding_forward(const EmbeddingInput& input) const;
  struct Sorted {
    at::Tensor order;
    at::Tensor ids;
  };
  Sorted embedding_sort(const at::Tensor& ids, int64_t vocabulary) const;
  // Adds to `grad_table`, and returns the sum.
  at::Tensor embedding_backward(const EmbeddingInput& input, const at::Tensor& grad_out,
                                const at::Tensor& grad_table) const;
  at::Tensor position_backward(const EmbeddingInput& input, const at::Tensor& grad_out) const;

  struct Optimized {
    std::vector<at::Tensor> masters;
    std::vector<at::Tensor> first;
    std::vector<at::Tensor> second;
    std::vector<at::Tensor> copies;
    LockstepStepState state{};
  };
  struct OptimizerInput {
    Optimized before;  // copies are made where they are defined
    std::vector<at::Tensor> gradients;
    std::vector<float> decays;
    bool sgd = false;
    bool nesterov = false;
    bool clips = true;  // the norm of the gradients is given
  };
  Optimized optimizer_step(const OptimizerInput& input) const;

  struct BatchNorm {
    at::Tensor out;
    at::Tensor mean;
    at::Tensor rstd;
    at::Tensor running_mean;
    at::Tensor running_var;
  };
  struct BatchNormInput {
    at::Tensor x;  // [rows, channels]
    at::Tensor residual;
    at::Tensor weight;
    at::Tensor bias;
    at::Tensor running_mean;
    at::Tensor running_var;
    bool relu = true;
  };
  BatchNorm batch_norm_forward(const BatchNormInput& input) const;
  struct BatchNormGradients {
    at::Tensor x;
    at::Tensor residual;
    at::Tensor weight;
    at::Tensor bias;
  };
  BatchNormGradients batch_norm_backward(const BatchNormInput& input, const BatchNorm& forward,
                                         const at::Tensor& grad_out) const;

 private:
  at::Tensor there(const at::Tensor& tensor) const;  // a copy of its own, even on the CPU
  at::Tensor poisoned(at::IntArrayRef sizes, at::ScalarType type = at::kFloat) const;
  at::Tensor bytes(size_t count) const;

  const LockstepKernels& kernels_;
  at::Device device_;
};

}  // namespace lockstep::testing_support
