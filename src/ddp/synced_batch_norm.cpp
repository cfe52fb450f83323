#include "ddp/synced_batch_norm.h"

#include <optional>
#include <vector>

#include <ATen/ops/addcmul.h>
#include <ATen/ops/batch_norm_update_stats.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/native_batch_norm_backward.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/custom_function.h>

#include <lockstep/base/error.h>

#include "ddp/device/device_path.h"

namespace lockstep::ddp {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Values per channel, of all ranks. On a device the host does not know the number, since to read it
// would be to wait for the device.
struct Count {
  double number = 0;
  at::Tensor there;  // on a device: float64 []

  at::Tensor divide(const at::Tensor& sums) const {  // in place
    return there.defined() ? sums.div_(there.clamp_min(1)) : sums.div_(number > 0 ? number : 1.0);
  }
};

// This travels with a node of the autograd graph.
struct NodeData : torch::CustomClassHolder {
  NodeData(Group the_group, Count the_count, double the_eps)
      : group(std::move(the_group)), count(std::move(the_count)), eps(the_eps) {}
  Group group;
  Count count;
  double eps;
};

struct Statistics {
  at::Tensor mean;      // float64 [C]
  at::Tensor variance;  // float64 [C], biased
  Count count;
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

// This rank's means, biased variances and count in one row. Gathered rather than summed: sums of
// squares would lose the variance where the mean is large.
at::Tensor own_statistics(const at::Tensor& input) {
  const int64_t channels = input.size(1);
  const at::Tensor row = at::zeros({2 * channels + 1}, input.options().dtype(at::kDouble));
  if (input.numel() > 0) {
    // A GPU reads half precision as it is.
    const auto [mean, variance] = at::batch_norm_update_stats(
        input.is_cpu() ? input.to(statistics_type(input)) : input, {}, {}, 0.0);
    row.narrow(0, 0, channels).copy_(mean);
    row.narrow(0, channels, channels).copy_(variance);
    row.narrow(0, 2 * channels, 1).fill_(values_per_channel(input));
  }
  return row;
}

// Plain loops: the order of these sums is the same on every rank, whatever its vector unit.
Statistics combine_on_host(const at::Tensor& rows, int64_t channels) {
  Statistics all{at::zeros({channels}, at::kDouble), at::zeros({channels}, at::kDouble), {}};
  const double* const data = rows.const_data_ptr<double>();
  const int64_t width = rows.size(1);
  const int64_t num_ranks = rows.size(0);
  double& count = all.count.number;
  for (int64_t rank = 0; rank < num_ranks; ++rank) {
    count += data[rank * width + 2 * channels];
  }
  double* const mean = all.mean.mutable_data_ptr<double>();
  double* const variance = all.variance.mutable_data_ptr<double>();
  for (int64_t c = 0; count > 0 && c < channels; ++c) {
    for (int64_t rank = 0; rank < num_ranks; ++rank) {
      mean[c] += data[rank * width + 2 * channels] / count * data[rank * width + c];
    }
    for (int64_t rank = 0; rank < num_ranks; ++rank) {
      const double shift = data[rank * width + c] - mean[c];
      variance[c] += data[rank * width + 2 * channels] / count *
                     (data[rank * width + channels + c] + shift * shift);
    }
  }
  return all;
}

// The same sums by tensor operations; counts are whole numbers, so the order of their sum does not
// matter. A rank without values has a share of zero.
Statistics combine_on_device(const at::Tensor& rows, int64_t channels) {
  const at::Tensor counts = rows.narrow(1, 2 * channels, 1);
  Statistics all;
  all.count.there = counts.sum();
  const at::Tensor shares = counts / all.count.there.clamp_min(1);
  const at::Tensor means = rows.narrow(1, 0, channels);
  all.mean = (shares * means).sum(0);
  all.variance =
      (shares * (rows.narrow(1, channels, channels) + (means - all.mean).square())).sum(0);
  return all;
}

Statistics gather_statistics(const at::Tensor& input, Group group) {
  const at::Tensor row = own_statistics(input);
  const at::Tensor rows = at::empty({group.size(), row.numel()}, row.options());
  group.all_gather(rows, row);
  return takes_device_path(input.device()) ? combine_on_device(rows, input.size(1))
                                           : combine_on_host(rows, input.size(1));
}

// Whether any rank has values. Throws UsageError, on all ranks, if all of them have one together. A
// rank with two or more knows the answer; only one with fewer waits for the device.
bool has_values(const Statistics& batch, const at::Tensor& input) {
  const double own = values_per_channel(input);
  if (batch.count.there.defined() && own > 1) {
    return true;
  }
  const double all =
      batch.count.there.defined() ? batch.count.there.item<double>() : batch.count.number;
  check_values_per_channel(all, input);
  return all > 0;
}

void update_running(const Statistics& batch, const BatchNormTensors& tensors,
                    const BatchNormNumbers& numbers) {
  if (!tensors.running_mean.defined()) {
    return;
  }
  const auto mix = [&numbers](const at::Tensor& running, const at::Tensor& now) {
    const at::Tensor before = running.to(at::kDouble);
    running.copy_(numbers.share.defined()
                      ? before + numbers.share * (now - before)
                      : before.mul(1 - numbers.momentum).add_(now, numbers.momentum));
  };
  mix(tensors.running_mean, batch.mean);
  const Count& count = batch.count;
  mix(tensors.running_var, count.there.defined()
                               ? batch.variance * (count.there / (count.there - 1))
                               : batch.variance * (count.number / (count.number - 1)));
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
    // A GPU computes the sums for a weight only if there is one.
    const at::Tensor factor = weight.defined() ? weight.to(type) : at::ones_like(mean);

    // This is as for fixed statistics, plus the two sums over this rank's values.
    at::Tensor input_grad = at::empty_like(input);
    at::Tensor weight_grad = at::zeros_like(mean);
    at::Tensor bias_grad = at::zeros_like(mean);
    if (input.numel() > 0) {
      std::tie(input_grad, weight_grad, bias_grad) = at::native_batch_norm_backward(
          output_grad, input, factor, mean, saved[3], mean, inverse_deviation, false, node->eps,
          {context->needs_input_grad(0), true, true});
    }
    if (context->needs_input_grad(0)) {
      const at::Tensor sums = at::stack({weight_grad, bias_grad}).to(at::kDouble);
      node->group.all_reduce(sums);
      node->count.divide(sums);
      const at::Tensor scale = inverse_deviation * factor;
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
                             const BatchNormNumbers& numbers, const Group& group) {
  Statistics batch;
  {
    const at::NoGradGuard no_grad;
    batch = gather_statistics(input, group);
    if (has_values(batch, input)) {
      update_running(batch, tensors, numbers);
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
