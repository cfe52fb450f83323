#pragma once

// The parts of a training step between its matrix products, with their gradients: one kernel where
// libtorch's operators make several passes over memory. On a GPU they run on the plug-in's kernels,
// and on the CPU on the kernels' twins, which say what is computed and are slow.
//
// Activations are float32 or bfloat16; parameters and their gradients are float32. What a function
// is given may have any strides. The arguments are the caller's to check: one that does not fit is
// an InternalError. Second derivatives are refused.

#include <optional>

#include <ATen/core/Tensor.h>

namespace lockstep::device {

// Whether the functions are faster than libtorch's operators for `x`: it is float32 or bfloat16, on
// a GPU, and there is a plug-in that has code for that model of GPU.
bool has_functions(const at::Tensor& x);

// The type in which they take activations in place of libtorch's operators: bfloat16 under autocast
// to it, else the type of `x`. None where they are not to be used: has_functions() says no, a
// parameter is not float32, or autocast is to float16.
std::optional<at::ScalarType> function_type(const at::Tensor& x, at::TensorList parameters);

// While it lives, has_functions() of this thread says yes (Everywhere) or no (Nowhere) on every
// device: for comparisons.
enum class FunctionsUse { WhereFast, Everywhere, Nowhere };
class UseFunctions {
 public:
  explicit UseFunctions(FunctionsUse use);
  ~UseFunctions();
  UseFunctions(const UseFunctions&) = delete;
  UseFunctions& operator=(const UseFunctions&) = delete;

 private:
  FunctionsUse before_;
};

// A dropout draws its seed from the generator of the device, which is a launch. While a
// SharedDropout lives, all dropouts of this thread share one draw and tell themselves apart by
// their number: a model makes one at the beginning of its forward pass.
class SharedDropout {
 public:
  SharedDropout();
  ~SharedDropout();
  SharedDropout(const SharedDropout&) = delete;
  SharedDropout& operator=(const SharedDropout&) = delete;
};

// The largest dropout that they take: a probability has 16 bits.
inline constexpr double kMostDropout = 0.999;

struct NormInput {
  at::Tensor x;                 // [..., columns]
  at::Tensor branch;            // like x, or undefined: nothing is added
  at::Tensor branch_bias = {};  // [columns]: in `branch` already, without a gradient; or undefined
  at::Tensor weight = {};       // [columns]
  at::Tensor bias = {};         // [columns]
  double epsilon = 1e-5;
  double dropout = 0;  // of the branch; in [0, kMostDropout]
};
struct NormOutput {
  at::Tensor sum;  // x + dropout(branch)
  at::Tensor out;  // the layer norm of sum
};
// The gradient of branch_bias is the column sums of the branch's: a pass less than where the bias
// is added.
NormOutput residual_norm(const NormInput& input);

enum class GeluForm { Erf, Tanh };
// gelu(x). `bias`, [columns] or undefined, is in `x` already, without a gradient, and gets it here.
at::Tensor gelu(const at::Tensor& x, GeluForm form, const at::Tensor& bias = {});

// x weight^T + bias for a vocabulary: x is [..., hidden], weight [words, hidden], bias [words] or
// undefined. The product has its rows padded to whole tiles, in copies of `type`, and is returned
// as [..., words] with the padding between its rows: fast for any number of words.
struct VocabularyInput {
  at::Tensor x;
  at::Tensor weight;
  at::Tensor bias;
  at::ScalarType type = at::kFloat;
};
at::Tensor vocabulary_linear(const VocabularyInput& input);

// Whether nobody else can see the memory of `x`.
bool is_last_owner(const at::Tensor& x);

struct CrossEntropyOptions {
  int64_t ignored = -100;  // the label of a row that does not count
  // The memory of the logits becomes that of their gradient, padding between rows included: right
  // if is_last_owner() says so of the tensor that they were made from. Otherwise they are copied.
  bool consumes = false;
};
// The mean cross entropy of logits [rows, classes] against labels [rows], in float32; NaN if no row
// counts, or if a label is no class. The gradient is computed with it, if one is needed, and given
// away by the first backward pass: a second one is refused.
at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& labels,
                         const CrossEntropyOptions& options);

struct EmbeddingTables {
  at::Tensor tokens;                 // [words, columns]
  at::Tensor positions = {};         // [at least time, columns], or undefined
  at::Tensor segments = {};          // [kinds, columns], or undefined
  at::Tensor segment_ids = {};       // like the ids, with segments
  int64_t padding = -1;              // its row of `tokens` gets no gradient; -1: every row does
  double dropout = 0;                // in [0, kMostDropout]
  at::ScalarType type = at::kFloat;  // of the result
};
// dropout(tokens[ids] + positions[0, 1, ...] + segments[segment_ids]) for ids [batch, time]. The
// gradients are the same bits every time. An id that is no word makes NaN.
at::Tensor embedding(const at::Tensor& ids, const EmbeddingTables& tables);

struct BatchNormInput {
  at::Tensor x;              // [batch, channels, ...], channels last; more than one per channel
  at::Tensor residual = {};  // like x, or undefined
  at::Tensor weight = {};    // [channels]
  at::Tensor bias = {};
  at::Tensor running_mean = {};  // [channels], or undefined: updated
  at::Tensor running_var = {};
  double momentum = 0.1;
  double epsilon = 1e-5;
  bool relu = false;
};
// relu(batch_norm(x) + residual) in training, channels last.
at::Tensor batch_norm(const BatchNormInput& input);

}  // namespace lockstep::device
