#include "ddp/synced_batch_norm.h"

#include <optional>
#include <vector>

#include <ATen/ops/addcmul.h>
#include <ATen/ops/batch_norm_update_stats.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/native_batch_norm_backward.h>
#include <ATen/ops/zeros.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/custom_function.h>

#include <lockstep/base/error.h>

namespace lockstep::ddp {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// This travels with a node of the autograd graph.
struct NodeData : torch::CustomClassHolder {
  NodeData(Group the_group, double the_count, double the_eps)
      : group(std::move(the_group)), count(the_count), eps(the_eps) {}
  Group group;
  double count;  // values per channel, of all ranks
  double eps;
};

struct Statistics {
  at::Tensor mean;      // float64 [C]
  at::Tensor variance;  // float64 [C], biased
  double count = 0;     // values per channel, of all ranks
};

// float32, or float64 if the values are.
at::ScalarType statistics_type(const at::Tensor& input) {
  return input.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

double values_per_channel(const at::Tensor& input) {
  return input.size(1) == 0
             ? 0.0
             : static_cast<double>(input.numel()) / static_cast<double>(input.size(1));
}

at::Tensor per_channel(const at::Tensor& values, const at::Tensor& like) {
  std::vector<int64_t> shape(static_cast<size_t>(like.dim()), 1);
  shape[1] = values.numel();
  return values.view(shape);
}

std::optional<at::Tensor> as_type(const std::optional<at::Tensor>& tensor, at::ScalarType type) {
  return tensor && tensor->defined() ? std::optional(tensor->to(type)) : std::nullopt;
}

// One row per rank: means, biased variances, count. Gathered rather than summed: sums of squares
// would lose the variance where the mean is large.
Statistics gather_statistics(const at::Tensor& input, Group group) {
  const int64_t channels = input.size(1);
  const at::Tensor row = at::zeros({2 * channels + 1}, at::kDouble);
  if (input.numel() > 0) {
    const auto [mean, variance] =
        at::batch_norm_update_stats(input.to(statistics_type(input)), {}, {}, 0.0);
    row.narrow(0, 0, channels).copy_(mean);
    row.narrow(0, channels, channels).copy_(variance);
    row.narrow(0, 2 * channels, 1).fill_(values_per_channel(input));
  }
  const at::Tensor rows = at::empty({group.size(), row.numel()}, at::kDouble);
  group.all_gather(rows, row);

  // Plain loops: the order of these sums is the same on every rank, whatever its vector unit.
  Statistics all{at::zeros({channels}, at::kDouble), at::zeros({channels}, at::kDouble)};
  const double* const data = rows.const_data_ptr<double>();
  const int64_t width = row.numel();
  for (int rank = 0; rank < group.size(); ++rank) {
    all.count += data[rank * width + 2 * channels];
  }
  double* const mean = all.mean.mutable_data_ptr<double>();
  double* const variance = all.variance.mutable_data_ptr<double>();
  for (int64_t c = 0; all.count > 0 && c < channels; ++c) {
    for (int rank = 0; rank < group.size(); ++rank) {
      mean[c] += data[rank * width + 2 * channels] / all.count * data[rank * width + c];
    }
    for (int rank = 0; rank < group.size(); ++rank) {
      const double shift = data[rank * width + c] - mean[c];
      variance[c] += data[rank * width + 2 * channels] / all.count *
                     (data[rank * width + channels + c] + shift * shift);
    }
  }
  return all;
}

void update_running(const Statistics& batch, const BatchNormTensors& tensors, double momentum) {
  if (!tensors.running_mean.defined()) {
    return;
  }
  const auto mix = [momentum](const at::Tensor& running, const at::Tensor& now) {
    running.copy_(running.to(at::kDouble).mul_(1 - momentum).add_(now, momentum));
  };
  mix(tensors.running_mean, batch.mean);
  mix(tensors.running_var, batch.variance * (batch.count / (batch.count - 1)));
}

class SyncedBatchNorm : public torch::autograd::Function<SyncedBatchNorm> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const std::optional<at::Tensor>& weight,
                            const std::optional<at::Tensor>& bias, const at::Tensor& mean,
                            const at::Tensor& variance, const c10::intrusive_ptr<NodeData>& data) {
    context->save_for_backward({input, weight.value_or(at::Tensor()), mean, variance});
    context->saved_data["node"] =
        c10::IValue::make_capsule(c10::intrusive_ptr<torch::CustomClassHolder>(data));
    if (input.numel() == 0) {
      return at::empty_like(input);
    }
    const at::ScalarType type = statistics_type(input);
    return std::get<0>(at::native_batch_norm(input, as_type(weight, type), as_type(bias, type),
                                             mean, variance, false, 0.0, data->eps));
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    if (at::GradMode::is_enabled()) {
      throw UsageError(
          "sync_batch_norm: backward with create_graph: second derivatives do not pass through the "
          "exchange between ranks; use torch::nn::BatchNorm for them");
    }
    const variable_list saved = context->get_saved_variables();
    const auto node =
        c10::static_intrusive_pointer_cast<NodeData>(context->saved_data["node"].toCapsule());
    const at::Tensor& weight = saved[1];
    const at::ScalarType type = statistics_type(saved[0]);
    const at::Tensor input = saved[0].to(type);
    const at::Tensor output_grad = gradients[0].to(type).contiguous(input.suggest_memory_format());
    const at::Tensor mean = saved[2];
    const at::Tensor inverse_deviation = (saved[3] + node->eps).rsqrt();

    // This is as for fixed statistics, plus the two sums over this rank's values.
    at::Tensor input_grad = at::empty_like(input);
    at::Tensor weight_grad = at::zeros_like(mean);
    at::Tensor bias_grad = at::zeros_like(mean);
    if (input.numel() > 0) {
      std::tie(input_grad, weight_grad, bias_grad) = at::native_batch_norm_backward(
          output_grad, input, as_type(weight, type), mean, saved[3], {}, {}, false, node->eps,
          {context->needs_input_grad(0), true, true});
    }
    if (context->needs_input_grad(0)) {
      const at::Tensor sums = at::stack({weight_grad, bias_grad}).to(at::kDouble);
      node->group.all_reduce(sums);
      sums.div_(node->count > 0 ? node->count : 1.0);
      at::Tensor scale = inverse_deviation;
      if (weight.defined()) {
        scale = scale * weight.to(type);
      }
      const at::Tensor slope = sums[0].to(type) * inverse_deviation * scale;
      input_grad.addcmul_(input - per_channel(mean, input), per_channel(slope, input), -1);
      input_grad.sub_(per_channel(sums[1].to(type) * scale, input));
      input_grad = input_grad.to(saved[0].scalar_type());
    }
    if (weight.defined()) {
      weight_grad = weight_grad.to(weight.scalar_type());
      bias_grad = bias_grad.to(weight.scalar_type());
    }
    return {context->needs_input_grad(0) ? input_grad : at::Tensor(),
            context->needs_input_grad(1) ? weight_grad : at::Tensor(),
            context->needs_input_grad(2) ? bias_grad : at::Tensor(),
            {},
            {},
            {}};
  }
};

}  // namespace

void check_batch_norm_input(const at::Tensor& input, int64_t num_channels) {
  if (input.dim() < 2 || input.size(1) != num_channels) {
    throw UsageError("sync_batch_norm: the input is [{}]; it must be (N, {}, ...)",
                     fmt::join(input.sizes(), ", "), num_channels);
  }
  if (!input.device().is_cpu()) {
    throw UsageError("sync_batch_norm: the input is on {}; only CPU tensors are synchronised",
                     input.device().str());
  }
}

void check_values_per_channel(double num_values, const at::Tensor& input) {
  if (num_values == 1) {
    throw UsageError(
        "sync_batch_norm: expected more than 1 value per channel when training, all ranks together "
        "have 1; this rank's input is [{}]",
        fmt::join(input.sizes(), ", "));
  }
}

at::Tensor synced_batch_norm(const at::Tensor& input, const BatchNormTensors& tensors,
                             BatchNormNumbers numbers, const Group& group) {
  Statistics batch;
  {
    const at::NoGradGuard no_grad;
    batch = gather_statistics(input, group);
    check_values_per_channel(batch.count, input);
    if (batch.count > 0) {
      update_running(batch, tensors, numbers.momentum);
    }
  }
  const at::ScalarType type = statistics_type(input);
  const auto if_defined = [](const at::Tensor& tensor) {
    return tensor.defined() ? std::optional(tensor) : std::nullopt;
  };
  return SyncedBatchNorm::apply(input, if_defined(tensors.weight), if_defined(tensors.bias),
                                batch.mean.to(type), batch.variance.to(type),
                                c10::make_intrusive<NodeData>(group, batch.count, numbers.eps));
}

}  // namespace lockstep::ddp
