#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <lockstep/base/error.h>

#include "device/functions/call.h"
#include "device/functions/functions.h"
#include "device/kernels.h"

namespace lockstep::device {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The rows of a gradient, added up by the ids that they belong to.
struct RowsOfIds {
  at::Tensor gradient;  // [rows, columns], contiguous
  at::Tensor ids;
  int64_t num_ids = 0;
  DrawnDropout dropout;
};

at::Tensor add_by_id(const RowsOfIds& of) {
  const int64_t rows = of.ids.numel();
  const int64_t columns = of.gradient.size(-1);
  const at::Device device = of.gradient.device();
  const LockstepKernels& kernels = kernels_of(device);
  const at::Tensor table =
      at::zeros({of.num_ids, columns}, of.gradient.options().dtype(at::kFloat));
  if (rows == 0) {
    return table;
  }
  const at::Tensor sorted = at::empty({2, rows}, of.ids.options().dtype(at::kInt));
  auto* const order = sorted.data_ptr<int32_t>();
  const at::Tensor to_sort = scratch_of(device, kernels.embedding_sort_scratch_bytes(rows));
  const LockstepEmbeddingSort sort{.rows = rows,
                                   .vocabulary = of.num_ids,
                                   .ids = of.ids.const_data_ptr<int64_t>(),
                                   .order = order,
                                   .sorted_ids = order + rows,
                                   .scratch = data_of(to_sort)};
  call_kernel(device, &LockstepKernels::embedding_sort, sort, "embedding_sort");
  const at::Tensor to_add = scratch_of(device, kernels.embedding_scratch_bytes(rows, columns));
  const LockstepEmbeddingBackward add{.rows = rows,
                                      .columns = columns,
                                      .vocabulary = of.num_ids,
                                      .type = kernel_type(of.gradient),
                                      .grad_out = data_of(of.gradient),
                                      .order = order,
                                      .sorted_ids = order + rows,
                                      .grad_table = floats_of(table),
                                      .dropout = of.dropout.arguments(),
                                      .scratch = data_of(to_add)};
  call_kernel(device, &LockstepKernels::embedding_backward, add, "embedding_backward");
  return table;
}

// `period` rows are one sequence; the table of positions may be longer.
at::Tensor add_by_position(const RowsOfIds& of, int64_t period) {
  const int64_t columns = of.gradient.size(-1);
  const at::Tensor table =
      at::zeros({of.num_ids, columns}, of.gradient.options().dtype(at::kFloat));
  if (of.gradient.numel() == 0) {
    return table;
  }
  const LockstepPositionBackward arguments{.rows = of.ids.numel(),
                                           .columns = columns,
                                           .period = period,
                                           .type = kernel_type(of.gradient),
                                           .accumulate = 0,
                                           .grad_out = data_of(of.gradient),
                                           .grad_positions = floats_of(table),
                                           .dropout = of.dropout.arguments()};
  call_kernel(of.gradient.device(), &LockstepKernels::position_backward, arguments,
              "position_backward");
  return table;
}

class FusedEmbedding : public torch::autograd::Function<FusedEmbedding> {
 public:
  struct Settings {
    int64_t padding = -1;
    double dropout = 0;
    at::ScalarType type = at::kFloat;
  };

  static at::Tensor forward(AutogradContext* context, const at::Tensor& tokens,
                            const std::optional<at::Tensor>& positions,
                            const std::optional<at::Tensor>& segments, const at::Tensor& ids,
                            const std::optional<at::Tensor>& segment_ids,
                            const Settings& settings) {
    const int64_t columns = tokens.size(1);
    const DrawnDropout dropout = draw_dropout(settings.dropout, tokens.device());
    const at::Tensor out =
        at::empty({ids.size(0), ids.size(1), columns}, tokens.options().dtype(settings.type));
    const LockstepEmbeddingForward arguments{
        .rows = ids.numel(),
        .columns = columns,
        .vocabulary = tokens.size(0),
        .period = std::max<int64_t>(ids.size(1), 1),
        .type = kernel_type(out),
        .table_type = LOCKSTEP_FLOAT32,
        .ids = ids.const_data_ptr<int64_t>(),
        .tokens = floats_of(tokens),
        .positions = positions ? floats_of(*positions) : nullptr,
        .segment_ids = segment_ids ? segment_ids->const_data_ptr<int64_t>() : nullptr,
        .segments = segments ? floats_of(*segments) : nullptr,
        .out = data_of(out),
        .dropout = dropout.arguments()};
    call_kernel(tokens.device(), &LockstepKernels::embedding_forward, arguments,
                "embedding_forward");
    context->set_materialize_grads(false);
    context->save_for_backward({ids, segment_ids.value_or(at::Tensor()), dropout.state});
    context->saved_data["words"] = tokens.size(0);
    context->saved_data["positions"] = positions ? positions->size(0) : 0;
    context->saved_data["segments"] = segments ? segments->size(0) : 0;
    context->saved_data["padding"] = settings.padding;
    context->saved_data["probability"] = dropout.probability;
    context->saved_data["site"] = dropout.site;
    return out;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    refuse_second_derivatives("embedding");
    variable_list results(6);
    if (!gradients[0].defined()) {
      return results;
    }
    const variable_list saved = context->get_saved_variables();
    auto& data = context->saved_data;
    RowsOfIds of{.gradient = gradients[0].contiguous(),
                 .ids = saved[0],
                 .num_ids = data["words"].toInt(),
                 .dropout = {.probability = data["probability"].toDouble(),
                             .site = data["site"].toInt(),
                             .state = saved[2]}};
    const int64_t padding = data["padding"].toInt();
    const int64_t num_positions = data["positions"].toInt();
    const int64_t num_segments = data["segments"].toInt();
    size_t input = 0;  // of those that are given
    if (context->needs_input_grad(input++)) {
      results[0] = add_by_id(of);
      if (padding >= 0) {
        results[0].select(0, padding).zero_();
      }
    }
    if (num_positions > 0 && context->needs_input_grad(input++)) {
      of.num_ids = num_positions;
      results[1] = add_by_position(of, saved[0].size(1));
    }
    if (num_segments > 0 && context->needs_input_grad(input)) {
      of.ids = saved[1];
      of.num_ids = num_segments;
      results[2] = add_by_id(of);
    }
    return results;
  }
};

}  // namespace

at::Tensor embedding(const at::Tensor& ids, const EmbeddingTables& tables) {
  LOCKSTEP_CHECK(ids.dim() == 2 && ids.scalar_type() == at::kLong && tables.tokens.dim() == 2 &&
                     tables.tokens.numel() > 0,
                 "the ids of an embedding have {} dimensions, its table has {} elements", ids.dim(),
                 tables.tokens.numel());
  LOCKSTEP_CHECK(!tables.positions.defined() || tables.positions.size(0) >= ids.size(1),
                 "{} positions for sequences of {}", tables.positions.size(0), ids.size(1));
  LOCKSTEP_CHECK(tables.segments.defined() == tables.segment_ids.defined() &&
                     (!tables.segments.defined() || tables.segment_ids.sizes() == ids.sizes()),
                 "segments and their ids come together, an id for every word");
  const auto contiguous = [](const at::Tensor& x) {
    return x.defined() ? std::optional(x.contiguous()) : std::nullopt;
  };
  return FusedEmbedding::apply(
      tables.tokens.contiguous(), contiguous(tables.positions), contiguous(tables.segments),
      ids.contiguous(), contiguous(tables.segment_ids),
      FusedEmbedding::Settings{
          .padding = tables.padding, .dropout = tables.dropout, .type = tables.type});
}

}  // namespace lockstep::device
