#include "kernel_runs.h"

#include <cstring>
#include <limits>

#include "device/plugin.h"

namespace lockstep::testing_support {
namespace {

int32_t type_of(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kFloat ? LOCKSTEP_FLOAT32 : LOCKSTEP_BFLOAT16;
}

void* data(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.data_ptr() : nullptr;
}

float* floats(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.data_ptr<float>() : nullptr;
}

void check(const char* error, const char* what) {
  device::check_plugin(error, what);
}

// With the memory that has its state.
struct Dropping {
  at::Tensor state;
  LockstepDropout dropout{};
};

Dropping dropping(const DropoutOf& of, at::Device device) {
  Dropping result;
  result.state = at::tensor({of.seed, of.offset}, at::kLong).to(device);
  result.dropout = {.probability = static_cast<float>(of.probability),
                    .site = of.site,
                    .state = reinterpret_cast<const uint64_t*>(result.state.data_ptr<int64_t>())};
  return result;
}

}  // namespace

at::Tensor KernelRuns::there(const at::Tensor& tensor) const {
  return tensor.defined() ? tensor.contiguous().clone().to(device_) : tensor;
}

at::Tensor KernelRuns::poisoned(at::IntArrayRef sizes, at::ScalarType type) const {
  return at::full(sizes, std::numeric_limits<double>::quiet_NaN(), type).to(device_);
}

at::Tensor KernelRuns::bytes(size_t count) const {
  return at::empty({static_cast<int64_t>(count)}, at::kByte).fill_(0xff).to(device_);
}

KernelRuns::Norm KernelRuns::norm_forward(const NormInput& input) const {
  const at::Tensor x = there(input.x);
  const at::Tensor branch = there(input.branch);
  const at::Tensor weight = there(input.weight);
  const at::Tensor bias = there(input.bias);
  const Dropping dropout = dropping(input.dropout, device_);
  const at::ScalarType type = x.scalar_type();
  const Norm result{.sum = branch.defined() ? poisoned(x.sizes(), type) : at::Tensor(),
                    .out = poisoned(x.sizes(), type),
                    .mean = poisoned({x.size(0)}),
                    .rstd = poisoned({x.size(0)})};
  const LockstepNormForward arguments{.rows = x.size(0),
                                      .columns = x.size(1),
                                      .type = type_of(x),
                                      .epsilon = static_cast<float>(kEpsilon),
                                      .x = data(x),
                                      .branch = data(branch),
                                      .weight = floats(weight),
                                      .bias = floats(bias),
                                      .sum = data(result.sum),
                                      .out = data(result.out),
                                      .mean = floats(result.mean),
                                      .rstd = floats(result.rstd),
                                      .dropout = dropout.dropout};
  check(kernels_.norm_forward(&arguments, nullptr), "norm_forward");
  return {.sum = branch.defined() ? result.sum.cpu() : input.x,
          .out = result.out.cpu(),
          .mean = result.mean.cpu(),
          .rstd = result.rstd.cpu()};
}

KernelRuns::NormGradients KernelRuns::norm_backward(const NormInput& input, const Norm& forward,
                                                    const NormGradientsAsked& asked) const {
  const at::Tensor sum = there(forward.sum);
  const at::Tensor mean = there(forward.mean);
  const at::Tensor rstd = there(forward.rstd);
  const at::Tensor weight = there(input.weight);
  const at::Tensor grad_out = there(asked.grad_out);
  const at::Tensor grad_sum = there(asked.grad_sum);
  const Dropping dropout = dropping(input.dropout, device_);
  const int64_t columns = sum.size(1);
  const auto of_columns = [&] {
    return asked.accumulate ? there(at::ones({columns})) : poisoned({columns});
  };
  const NormGradients result{
      .x = poisoned(sum.sizes(), sum.scalar_type()),
      .branch = asked.branch ? poisoned(sum.sizes(), sum.scalar_type()) : at::Tensor(),
      .weight = of_columns(),
      .bias = of_columns(),
      .branch_bias = asked.branch_bias ? of_columns() : at::Tensor()};
  const at::Tensor scratch = bytes(kernels_.norm_scratch_bytes(sum.size(0), columns));
  const LockstepNormBackward arguments{.rows = sum.size(0),
                                       .columns = columns,
                                       .type = type_of(sum),
                                       .accumulate = asked.accumulate ? 1 : 0,
                                       .grad_out = data(grad_out),
                                       .grad_sum = data(grad_sum),
                                       .sum = data(sum),
                                       .mean = floats(mean),
                                       .rstd = floats(rstd),
                                       .weight = floats(weight),
                                       .grad_x = data(result.x),
                                       .grad_branch = data(result.branch),
                                       .grad_weight = floats(result.weight),
                                       .grad_bias = floats(result.bias),
                                       .grad_branch_bias = floats(result.branch_bias),
                                       .dropout = dropout.dropout,
                                       .scratch = data(scratch)};
  check(kernels_.norm_backward(&arguments, nullptr), "norm_backward");
  return {.x = result.x.cpu(),
          .branch = asked.branch ? result.branch.cpu() : at::Tensor(),
          .weight = result.weight.cpu(),
          .bias = result.bias.cpu(),
          .branch_bias = asked.branch_bias ? result.branch_bias.cpu() : at::Tensor()};
}

at::Tensor KernelRuns::gelu_forward(const at::Tensor& x, int32_t form) const {
  const at::Tensor from = there(x);
  const at::Tensor out = poisoned(x.sizes(), x.scalar_type());
  const LockstepGeluForward arguments{.rows = x.size(0),
                                      .columns = x.size(1),
                                      .type = type_of(x),
                                      .form = form,
                                      .x = data(from),
                                      .out = data(out)};
  check(kernels_.gelu_forward(&arguments, nullptr), "gelu_forward");
  return out.cpu();
}

KernelRuns::GeluGradients KernelRuns::gelu_backward(const at::Tensor& x, const at::Tensor& grad_out,
                                                    int32_t form, bool accumulate) const {
  const at::Tensor from = there(x);
  const at::Tensor gradient = there(grad_out);
  const at::Tensor grad_x = poisoned(x.sizes(), x.scalar_type());
  const at::Tensor grad_bias = accumulate ? there(at::ones({x.size(1)})) : poisoned({x.size(1)});
  const at::Tensor scratch = bytes(kernels_.column_scratch_bytes(x.size(0), x.size(1)));
  const LockstepGeluBackward arguments{.rows = x.size(0),
                                       .columns = x.size(1),
                                       .type = type_of(x),
                                       .form = form,
                                       .accumulate = accumulate ? 1 : 0,
                                       .x = data(from),
                                       .grad_out = data(gradient),
                                       .grad_x = data(grad_x),
                                       .grad_bias = floats(grad_bias),
                                       .scratch = data(scratch)};
  check(kernels_.gelu_backward(&arguments, nullptr), "gelu_backward");
  return {.x = grad_x.cpu(), .bias = grad_bias.cpu()};
}

KernelRuns::Entropy KernelRuns::cross_entropy(const at::Tensor& logits, const at::Tensor& labels,
                                              const EntropyOptions& options) const {
  const at::Tensor from = there(logits);
  const at::Tensor wanted = there(labels);
  const at::Tensor scale = there(at::full({1}, options.scale));
  const at::Tensor losses = poisoned({logits.size(0)});
  const at::Tensor result = poisoned({2});
  const LockstepCrossEntropy arguments{.rows = logits.size(0),
                                       .classes = options.classes,
                                       .stride = logits.size(1),
                                       .type = type_of(logits),
                                       .gradient = options.gradient ? 1 : 0,
                                       .ignored = -100,
                                       .logits = data(from),
                                       .labels = wanted.data_ptr<int64_t>(),
                                       .scale = options.scale == 1 ? nullptr : floats(scale),
                                       .losses = floats(losses),
                                       .result = floats(result)};
  check(kernels_.cross_entropy(&arguments, nullptr), "cross_entropy");
  return {.losses = losses.cpu(), .result = result.cpu(), .logits = from.cpu()};
}

at::Tensor KernelRuns::scale(const at::Tensor& x, float factor) const {
  const at::Tensor scaled = there(x);
  const at::Tensor by = there(at::full({1}, factor));
  const LockstepScale arguments{
      .count = x.numel(), .type = type_of(x), .data = data(scaled), .factor = floats(by)};
  check(kernels_.scale(&arguments, nullptr), "scale");
  return scaled.cpu();
}

at::Tensor KernelRuns::embedding_forward(const EmbeddingInput& input) const {
  const at::Tensor ids = there(input.ids);
  const at::Tensor tokens = there(input.tokens);
  const at::Tensor positions = there(input.positions);
  const at::Tensor segment_ids = there(input.segment_ids);
  const at::Tensor segments = there(input.segments);
  const Dropping dropout = dropping(input.dropout, device_);
  const at::Tensor out = poisoned({ids.numel(), tokens.size(1)}, input.type);
  const LockstepEmbeddingForward arguments{
      .rows = ids.numel(),
      .columns = tokens.size(1),
      .vocabulary = tokens.size(0),
      .period = positions.defined() ? positions.size(0) : 1,
      .type = type_of(out),
      .table_type = type_of(tokens),
      .ids = ids.data_ptr<int64_t>(),
      .tokens = data(tokens),
      .positions = data(positions),
      .segment_ids = segment_ids.defined() ? segment_ids.data_ptr<int64_t>() : nullptr,
      .segments = data(segments),
      .out = data(out),
      .dropout = dropout.dropout};
  check(kernels_.embedding_forward(&arguments, nullptr), "embedding_forward");
  return out.cpu();
}

KernelRuns::Sorted KernelRuns::embedding_sort(const at::Tensor& ids, int64_t vocabulary) const {
  const at::Tensor from = there(ids);
  const at::Tensor order = there(at::full({ids.numel()}, -1, at::kInt));
  const at::Tensor sorted = there(at::full({ids.numel()}, -1, at::kInt));
  const at::Tensor scratch = bytes(kernels_.embedding_sort_scratch_bytes(ids.numel()));
  const LockstepEmbeddingSort arguments{.rows = ids.numel(),
                                        .vocabulary = vocabulary,
                                        .ids = from.data_ptr<int64_t>(),
                                        .order = order.data_ptr<int32_t>(),
                                        .sorted_ids = sorted.data_ptr<int32_t>(),
                                        .scratch = data(scratch)};
  check(kernels_.embedding_sort(&arguments, nullptr), "embedding_sort");
  return {.order = order.cpu(), .ids = sorted.cpu()};
}

at::Tensor KernelRuns::embedding_backward(const EmbeddingInput& input, const at::Tensor& grad_out,
                                          const at::Tensor& grad_table) const {
  const Sorted sorted = embedding_sort(input.ids, grad_table.size(0));
  const at::Tensor order = there(sorted.order);
  const at::Tensor sorted_ids = there(sorted.ids);
  const at::Tensor gradient = there(grad_out);
  const at::Tensor table = there(grad_table);
  const Dropping dropout = dropping(input.dropout, device_);
  const int64_t rows = input.ids.numel();
  const at::Tensor scratch = bytes(kernels_.embedding_scratch_bytes(rows, table.size(1)));
  const LockstepEmbeddingBackward arguments{.rows = rows,
                                            .columns = table.size(1),
                                            .vocabulary = table.size(0),
                                            .type = type_of(gradient),
                                            .grad_out = data(gradient),
                                            .order = order.data_ptr<int32_t>(),
                                            .sorted_ids = sorted_ids.data_ptr<int32_t>(),
                                            .grad_table = floats(table),
                                            .dropout = dropout.dropout,
                                            .scratch = data(scratch)};
  check(kernels_.embedding_backward(&arguments, nullptr), "embedding_backward");
  return table.cpu();
}

at::Tensor KernelRuns::position_backward(const EmbeddingInput& input,
                                         const at::Tensor& grad_out) const {
  const at::Tensor gradient = there(grad_out);
  const at::Tensor grad_positions = poisoned(input.positions.sizes());
  const Dropping dropout = dropping(input.dropout, device_);
  const LockstepPositionBackward arguments{.rows = grad_out.size(0),
                                           .columns = grad_out.size(1),
                                           .period = input.positions.size(0),
                                           .type = type_of(gradient),
                                           .accumulate = 0,
                                           .grad_out = data(gradient),
                                           .grad_positions = floats(grad_positions),
                                           .dropout = dropout.dropout};
  check(kernels_.position_backward(&arguments, nullptr), "position_backward");
  return grad_positions.cpu();
}

KernelRuns::BatchNorm KernelRuns::batch_norm_forward(const BatchNormInput& input) const {
  const at::Tensor x = there(input.x);
  const at::Tensor residual = there(input.residual);
  const at::Tensor weight = there(input.weight);
  const at::Tensor bias = there(input.bias);
  const int64_t channels = x.size(1);
  const BatchNorm result{.out = poisoned(x.sizes(), x.scalar_type()),
                         .mean = poisoned({channels}),
                         .rstd = poisoned({channels}),
                         .running_mean = there(input.running_mean),
                         .running_var = there(input.running_var)};
  const at::Tensor scratch = bytes(kernels_.column_scratch_bytes(x.size(0), channels));
  const LockstepBatchNormForward arguments{.rows = x.size(0),
                                           .channels = channels,
                                           .type = type_of(x),
                                           .relu = input.relu ? 1 : 0,
                                           .epsilon = static_cast<float>(kEpsilon),
                                           .momentum = 0.1f,
                                           .x = data(x),
                                           .residual = data(residual),
                                           .weight = floats(weight),
                                           .bias = floats(bias),
                                           .out = data(result.out),
                                           .mean = floats(result.mean),
                                           .rstd = floats(result.rstd),
                                           .running_mean = floats(result.running_mean),
                                           .running_var = floats(result.running_var),
                                           .scratch = data(scratch)};
  check(kernels_.batch_norm_forward(&arguments, nullptr), "batch_norm_forward");
  return {.out = result.out.cpu(),
          .mean = result.mean.cpu(),
          .rstd = result.rstd.cpu(),
          .running_mean = result.running_mean.cpu(),
          .running_var = result.running_var.cpu()};
}

KernelRuns::BatchNormGradients KernelRuns::batch_norm_backward(const BatchNormInput& input,
                                                               const BatchNorm& forward,
                                                               const at::Tensor& grad_out) const {
  const at::Tensor x = there(input.x);
  const at::Tensor out = there(forward.out);
  const at::Tensor mean = there(forward.mean);
  const at::Tensor rstd = there(forward.rstd);
  const at::Tensor weight = there(input.weight);
  const at::Tensor gradient = there(grad_out);
  const int64_t channels = x.size(1);
  const bool has_residual = input.residual.defined();
  const BatchNormGradients result{
      .x = poisoned(x.sizes(), x.scalar_type()),
      .residual = has_residual ? poisoned(x.sizes(), x.scalar_type()) : at::Tensor(),
      .weight = poisoned({channels}),
      .bias = poisoned({channels})};
  const at::Tensor scratch = bytes(kernels_.column_scratch_bytes(x.size(0), channels));
  const LockstepBatchNormBackward arguments{.rows = x.size(0),
                                            .channels = channels,
                                            .type = type_of(x),
                                            .relu = input.relu ? 1 : 0,
                                            .accumulate = 0,
                                            .grad_out = data(gradient),
                                            .x = data(x),
                                            .out = input.relu ? data(out) : nullptr,
                                            .mean = floats(mean),
                                            .rstd = floats(rstd),
                                            .weight = floats(weight),
                                            .grad_x = data(result.x),
                                            .grad_residual = data(result.residual),
                                            .grad_weight = floats(result.weight),
                                            .grad_bias = floats(result.bias),
                                            .scratch = data(scratch)};
  check(kernels_.batch_norm_backward(&arguments, nullptr), "batch_norm_backward");
  return {.x = result.x.cpu(),
          .residual = has_residual ? result.residual.cpu() : at::Tensor(),
          .weight = result.weight.cpu(),
          .bias = result.bias.cpu()};
}

KernelRuns::Optimized KernelRuns::optimizer_step(const OptimizerInput& input) const {
  Optimized after = input.before;
  std::vector<at::Tensor> gradients;
  std::vector<LockstepParameter> parameters;
  double squares = 0;
  for (size_t i = 0; i < input.gradients.size(); ++i) {
    after.masters[i] = there(after.masters[i]);
    after.first[i] = there(after.first[i]);
    after.second[i] = there(after.second[i]);
    after.copies[i] = there(after.copies[i]);
    gradients.push_back(there(input.gradients[i]));
    squares += input.gradients[i].to(at::kDouble).square().sum().item<double>();
    parameters.push_back({.master = floats(after.masters[i]),
                          .moment1 = floats(after.first[i]),
                          .moment2 = floats(after.second[i]),
                          .grad = data(gradients[i]),
                          .copy = data(after.copies[i]),
                          .count = after.masters[i].numel(),
                          .grad_type = type_of(gradients[i]),
                          .weight_decay = input.decays[i],
                          .rate_factor = 1.0f + static_cast<float>(i) / 4,
                          .reserved = 0});
  }
  const std::vector<LockstepChunk> chunks = device::optimizer_chunks(parameters);
  const auto upload = [&](const void* from, size_t size) {
    const at::Tensor host = at::empty({static_cast<int64_t>(size)}, at::kByte);
    std::memcpy(host.data_ptr(), from, size);
    return host.to(device_);
  };
  const at::Tensor list = upload(parameters.data(), parameters.size() * sizeof(parameters[0]));
  const at::Tensor chunk_list = upload(chunks.data(), chunks.size() * sizeof(chunks[0]));
  const at::Tensor state = upload(&input.before.state, sizeof(LockstepStepState));
  const at::Tensor sum = there(at::full({1}, squares, at::kDouble));
  auto* on_device = static_cast<LockstepStepState*>(state.data_ptr());
  const LockstepParameterList all{static_cast<const LockstepParameter*>(list.data_ptr()),
                                  static_cast<const LockstepChunk*>(chunk_list.data_ptr()),
                                  static_cast<int64_t>(chunks.size())};
  const LockstepStepBegin begin{.sum_of_squares = input.clips ? sum.data_ptr<double>() : nullptr,
                                .beta1 = 0.9f,
                                .beta2 = 0.95f,
                                .state = on_device};
  check(kernels_.step_begin(&begin, nullptr), "step_begin");
  if (input.sgd) {
    const LockstepSgd arguments{.list = all,
                                .momentum = after.first[0].defined() ? 0.9f : 0.0f,
                                .dampening = input.nesterov ? 0.0f : 0.25f,
                                .nesterov = input.nesterov ? 1 : 0,
                                .state = on_device};
    check(kernels_.sgd(&arguments, nullptr), "sgd");
  } else {
    const LockstepAdamW arguments{
        .list = all, .beta1 = 0.9f, .beta2 = 0.95f, .epsilon = 1e-8f, .state = on_device};
    check(kernels_.adamw(&arguments, nullptr), "adamw");
  }
  for (auto* tensors : {&after.masters, &after.first, &after.second, &after.copies}) {
    for (at::Tensor& tensor : *tensors) {
      tensor = tensor.defined() ? tensor.cpu() : tensor;
    }
  }
  const at::Tensor state_after = state.cpu();
  std::memcpy(&after.state, state_after.data_ptr(), sizeof(after.state));
  return after;
}

}  // namespace lockstep::testing_support
