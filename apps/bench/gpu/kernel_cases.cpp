#include "bench/gpu/kernel_cases.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "bench/gpu/kernel_tensors.h"

namespace lockstep {
namespace {

constexpr int64_t kHidden = 768;
constexpr int64_t kVocabulary = 50257;
constexpr int64_t kPadded = 50304;
constexpr int64_t kSequence = 1024;

int64_t hidden(const KernelPlace& place) {
  return place.is_small ? 96 : kHidden;
}

std::string matrix_text(int64_t rows, int64_t columns) {
  return fmt::format("{}x{}", rows, columns);
}

KernelCase norm_forward_case(const KernelPlace& place, double probability) {
  const int64_t columns = hidden(place);
  const KernelTensors make(place);
  const at::Tensor weight = make.parameter(columns);
  const at::Tensor bias = make.parameter(columns);
  const at::Tensor state = make.dropout_state();
  KernelCase result{.shape = matrix_text(place.tokens, columns)};
  std::vector<LockstepNormForward> calls;
  KeptTensors kept{weight, bias, state};
  for (int set = 0; set < place.sets; ++set) {
    const at::Tensor x = make.matrix(place.tokens, columns);
    const at::Tensor branch = make.matrix(place.tokens, columns);
    const at::Tensor sum = at::empty_like(x);
    const at::Tensor out = at::empty_like(x);
    const at::Tensor mean = make.floats(place.tokens);
    const at::Tensor rstd = make.floats(place.tokens);
    calls.push_back({.rows = place.tokens,
                     .columns = columns,
                     .type = type_of(place.type),
                     .epsilon = 1e-5f,
                     .x = x.data_ptr(),
                     .branch = branch.data_ptr(),
                     .weight = floats_of(weight),
                     .bias = floats_of(bias),
                     .sum = sum.data_ptr(),
                     .out = out.data_ptr(),
                     .mean = floats_of(mean),
                     .rstd = floats_of(rstd),
                     .dropout = dropout_of(state, probability)});
    kept.insert(kept.end(), {x, branch, sum, out, mean, rstd});
    if (set == 0) {
      result.results = {sum, out, mean, rstd};
    }
  }
  result.bytes = 4.0 * bytes_of(kept[3]);
  result.run = runner(place, &LockstepKernels::norm_forward, calls, kept);
  return result;
}

KernelCase norm_backward_case(const KernelPlace& place, double probability) {
  const int64_t columns = hidden(place);
  const KernelTensors make(place);
  const at::Tensor weight = make.parameter(columns);
  const at::Tensor gradients = make.floats(3 * columns);
  const at::Tensor state = make.dropout_state();
  const at::Tensor scratch = make.bytes(place.kernels->norm_scratch_bytes(place.tokens, columns));
  KernelCase result{.shape = matrix_text(place.tokens, columns)};
  std::vector<LockstepNormBackward> calls;
  KeptTensors kept{weight, gradients, state, scratch};
  for (int set = 0; set < place.sets; ++set) {
    const at::Tensor grad_out = make.matrix(place.tokens, columns);
    const at::Tensor grad_sum = make.matrix(place.tokens, columns);
    const at::Tensor sum = make.matrix(place.tokens, columns);
    const at::Tensor grad_x = at::empty_like(sum);
    const at::Tensor grad_branch = probability > 0 ? at::empty_like(sum) : at::Tensor();
    const at::Tensor mean = sum.to(at::kFloat).mean(1);
    const at::Tensor rstd = sum.to(at::kFloat).std(1, false).reciprocal();
    calls.push_back({.rows = place.tokens,
                     .columns = columns,
                     .type = type_of(place.type),
                     .accumulate = 0,
                     .grad_out = grad_out.data_ptr(),
                     .grad_sum = grad_sum.data_ptr(),
                     .sum = sum.data_ptr(),
                     .mean = floats_of(mean),
                     .rstd = floats_of(rstd),
                     .weight = floats_of(weight),
                     .grad_x = grad_x.data_ptr(),
                     .grad_branch = grad_branch.defined() ? grad_branch.data_ptr() : nullptr,
                     .grad_weight = floats_of(gradients),
                     .grad_bias = floats_of(gradients) + columns,
                     .grad_branch_bias = floats_of(gradients) + 2 * columns,
                     .dropout = dropout_of(state, probability),
                     .scratch = scratch.data_ptr()});
    kept.insert(kept.end(), {grad_out, grad_sum, sum, grad_x, grad_branch, mean, rstd});
    if (set == 0) {
      result.results = {grad_x, gradients};
    }
  }
  result.bytes = (probability > 0 ? 5.0 : 4.0) * bytes_of(kept[4]);
  result.run = runner(place, &LockstepKernels::norm_backward, calls, kept);
  return result;
}

KernelCase gelu_forward_case(const KernelPlace& place, int32_t form) {
  const int64_t columns = 4 * hidden(place);
  const KernelTensors make(place);
  KernelCase result{.shape = matrix_text(place.tokens, columns)};
  std::vector<LockstepGeluForward> calls;
  KeptTensors kept;
  for (int set = 0; set < place.sets; ++set) {
    const at::Tensor x = make.matrix(place.tokens, columns);
    const at::Tensor out = at::empty_like(x);
    calls.push_back({.rows = place.tokens,
                     .columns = columns,
                     .type = type_of(place.type),
                     .form = form,
                     .x = x.data_ptr(),
                     .out = out.data_ptr()});
    kept.insert(kept.end(), {x, out});
  }
  result.results = {kept[1]};
  result.bytes = 2.0 * bytes_of(kept[0]);
  result.run = runner(place, &LockstepKernels::gelu_forward, calls, kept);
  return result;
}

KernelCase gelu_backward_case(const KernelPlace& place, int32_t form) {
  const int64_t columns = 4 * hidden(place);
  const KernelTensors make(place);
  const at::Tensor grad_bias = make.floats(columns);
  const at::Tensor scratch = make.bytes(place.kernels->column_scratch_bytes(place.tokens, columns));
  KernelCase result{.shape = matrix_text(place.tokens, columns)};
  std::vector<LockstepGeluBackward> calls;
  KeptTensors kept{grad_bias, scratch};
  for (int set = 0; set < place.sets; ++set) {
    const at::Tensor x = make.matrix(place.tokens, columns);
    const at::Tensor grad_out = make.matrix(place.tokens, columns);
    const at::Tensor grad_x = at::empty_like(x);
    calls.push_back({.rows = place.tokens,
                     .columns = columns,
                     .type = type_of(place.type),
                     .form = form,
                     .accumulate = 0,
                     .x = x.data_ptr(),
                     .grad_out = grad_out.data_ptr(),
                     .grad_x = grad_x.data_ptr(),
                     .grad_bias = floats_of(grad_bias),
                     .scratch = scratch.data_ptr()});
    kept.insert(kept.end(), {x, grad_out, grad_x});
  }
  result.results = {kept[4], grad_bias};
  result.bytes = 3.0 * bytes_of(kept[2]);
  result.run = runner(place, &LockstepKernels::gelu_backward, calls, kept);
  return result;
}

KernelCase cross_entropy_case(const KernelPlace& place, bool gradient) {
  const int64_t classes = place.is_small ? 4001 : kVocabulary;
  const int64_t stride = place.is_small ? 4032 : kPadded;
  const KernelTensors make(place);
  const at::Tensor logits = make.matrix(place.tokens, stride);
  const at::Tensor labels = make.ids(place.tokens, classes);
  labels.slice(0, 0, place.tokens, 16).fill_(-100);
  const at::Tensor losses = make.floats(place.tokens);
  const at::Tensor summary = make.floats(2);
  const LockstepCrossEntropy call{.rows = place.tokens,
                                  .classes = classes,
                                  .stride = stride,
                                  .type = type_of(place.type),
                                  .gradient = gradient ? 1 : 0,
                                  .ignored = -100,
                                  .logits = logits.data_ptr(),
                                  .labels = labels.data_ptr<int64_t>(),
                                  .scale = nullptr,
                                  .losses = floats_of(losses),
                                  .result = floats_of(summary)};
  KernelCase result{.shape = fmt::format("{} of {}", matrix_text(place.tokens, stride), classes),
                    .bytes = (gradient ? 2.0 : 1.0) * bytes_of(logits)};
  result.run = runner(place, &LockstepKernels::cross_entropy, std::vector{call},
                      {logits, labels, losses, summary});
  result.refill = gradient ? [logits] { logits.normal_(); } : std::function<void()>();
  result.results = {losses, summary, logits};
  return result;
}

// The tensors of an embedding and its gradient.
struct Embedding {
  at::Tensor ids;
  at::Tensor tokens;
  at::Tensor positions;
  at::Tensor activations;
  at::Tensor order;
  at::Tensor sorted_ids;
  int64_t vocabulary = 0;
  int64_t period = 0;
};

Embedding make_embedding(const KernelPlace& place) {
  const KernelTensors make(place);
  Embedding result;
  result.vocabulary = place.is_small ? 331 : kVocabulary;
  result.period = std::min(place.tokens, kSequence);
  result.ids = make.ids(place.tokens, result.vocabulary);
  result.tokens = make.matrix(result.vocabulary, hidden(place));
  result.positions = make.matrix(result.period, hidden(place));
  result.activations = make.matrix(place.tokens, hidden(place));
  result.order = at::zeros({place.tokens}, result.ids.options().dtype(at::kInt));
  result.sorted_ids = at::zeros_like(result.order);
  return result;
}

KernelCase embedding_forward_case(const KernelPlace& place) {
  const Embedding e = make_embedding(place);
  const LockstepEmbeddingForward call{.rows = place.tokens,
                                      .columns = hidden(place),
                                      .vocabulary = e.vocabulary,
                                      .period = e.period,
                                      .type = type_of(place.type),
                                      .table_type = type_of(place.type),
                                      .ids = e.ids.data_ptr<int64_t>(),
                                      .tokens = e.tokens.data_ptr(),
                                      .positions = e.positions.data_ptr(),
                                      .segment_ids = nullptr,
                                      .segments = nullptr,
                                      .out = e.activations.data_ptr(),
                                      .dropout = {}};
  KernelCase result{.shape = matrix_text(place.tokens, hidden(place)),
                    .bytes = 2.0 * bytes_of(e.activations)};
  result.run = runner(place, &LockstepKernels::embedding_forward, std::vector{call},
                      {e.ids, e.tokens, e.positions, e.activations});
  result.results = {e.activations};
  return result;
}

LockstepEmbeddingSort sort_call(const KernelPlace& place, const Embedding& e,
                                const at::Tensor& scratch) {
  return {.rows = place.tokens,
          .vocabulary = e.vocabulary,
          .ids = e.ids.data_ptr<int64_t>(),
          .order = e.order.data_ptr<int32_t>(),
          .sorted_ids = e.sorted_ids.data_ptr<int32_t>(),
          .scratch = scratch.data_ptr()};
}

KernelCase embedding_sort_case(const KernelPlace& place) {
  const Embedding e = make_embedding(place);
  const at::Tensor scratch =
      KernelTensors(place).bytes(place.kernels->embedding_sort_scratch_bytes(place.tokens));
  KernelCase result{.shape = fmt::format("{} of {}", place.tokens, e.vocabulary),
                    .bytes = 16.0 * static_cast<double>(place.tokens)};
  result.run =
      runner(place, &LockstepKernels::embedding_sort, std::vector{sort_call(place, e, scratch)},
             {e.ids, e.order, e.sorted_ids, scratch});
  result.results = {e.order, e.sorted_ids};
  return result;
}

KernelCase embedding_backward_case(const KernelPlace& place) {
  const Embedding e = make_embedding(place);
  const KernelTensors make(place);
  const at::Tensor sort_scratch =
      make.bytes(place.kernels->embedding_sort_scratch_bytes(place.tokens));
  const LockstepEmbeddingSort sort = sort_call(place, e, sort_scratch);
  check_kernel(place.kernels->embedding_sort(&sort, nullptr), "embedding_sort");
  const auto unique = static_cast<double>(std::get<0>(at::_unique(e.ids)).numel());
  const at::Tensor table = at::zeros({e.vocabulary, hidden(place)}, make.float_options());
  const at::Tensor scratch =
      make.bytes(place.kernels->embedding_scratch_bytes(place.tokens, hidden(place)));
  const LockstepEmbeddingBackward call{.rows = place.tokens,
                                       .columns = hidden(place),
                                       .vocabulary = e.vocabulary,
                                       .type = type_of(place.type),
                                       .grad_out = e.activations.data_ptr(),
                                       .order = e.order.data_ptr<int32_t>(),
                                       .sorted_ids = e.sorted_ids.data_ptr<int32_t>(),
                                       .grad_table = floats_of(table),
                                       .dropout = {},
                                       .scratch = scratch.data_ptr()};
  KernelCase result{
      .shape = fmt::format("{} to {:.0f} rows", matrix_text(place.tokens, hidden(place)), unique),
      .bytes = bytes_of(e.activations) + unique * 8 * static_cast<double>(hidden(place))};
  result.run = runner(place, &LockstepKernels::embedding_backward, std::vector{call},
                      {e.activations, e.order, e.sorted_ids, table, scratch});
  result.results = {table};
  return result;
}

KernelCase position_backward_case(const KernelPlace& place) {
  const Embedding e = make_embedding(place);
  const at::Tensor gradient =
      at::empty({e.period, hidden(place)}, KernelTensors(place).float_options());
  const LockstepPositionBackward call{.rows = place.tokens,
                                      .columns = hidden(place),
                                      .period = e.period,
                                      .type = type_of(place.type),
                                      .accumulate = 0,
                                      .grad_out = e.activations.data_ptr(),
                                      .grad_positions = floats_of(gradient),
                                      .dropout = {}};
  KernelCase result{.shape = matrix_text(place.tokens, hidden(place)),
                    .bytes = bytes_of(e.activations) + bytes_of(gradient)};
  result.run = runner(place, &LockstepKernels::position_backward, std::vector{call},
                      {e.activations, gradient});
  result.results = {gradient};
  return result;
}

}  // namespace

const std::vector<KernelEntry>& kernel_entries() {
  static const std::vector<KernelEntry> entries = [] {
    constexpr double kDrop = 0.1;
    const auto with = [](auto function, auto value) {
      return [=](const KernelPlace& place) { return function(place, value); };
    };
    std::vector<KernelEntry> all = {
        {.name = "norm_forward", .make = with(norm_forward_case, 0.0)},
        {.name = "norm_forward_dropout", .make = with(norm_forward_case, kDrop)},
        {.name = "norm_backward", .make = with(norm_backward_case, 0.0)},
        {.name = "norm_backward_dropout", .make = with(norm_backward_case, kDrop)},
        {.name = "gelu_erf_forward", .make = with(gelu_forward_case, LOCKSTEP_GELU_ERF)},
        {.name = "gelu_erf_backward", .make = with(gelu_backward_case, LOCKSTEP_GELU_ERF)},
        {.name = "gelu_tanh_forward", .make = with(gelu_forward_case, LOCKSTEP_GELU_TANH)},
        {.name = "gelu_tanh_backward", .make = with(gelu_backward_case, LOCKSTEP_GELU_TANH)},
        {.name = "cross_entropy", .make = with(cross_entropy_case, true)},
        {.name = "cross_entropy_loss", .make = with(cross_entropy_case, false)},
        {.name = "embedding_forward", .make = embedding_forward_case},
        {.name = "embedding_sort", .has_types = false, .make = embedding_sort_case},
        {.name = "embedding_backward", .make = embedding_backward_case},
        {.name = "position_backward", .make = position_backward_case}};
    const std::vector<KernelEntry>& others = other_kernel_entries();
    all.insert(all.end(), others.begin(), others.end());
    return all;
  }();
  return entries;
}

}  // namespace lockstep
