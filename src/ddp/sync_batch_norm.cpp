#include <optional>
#include <set>

#include <ATen/ops/batch_norm.h>
#include <ATen/ops/batch_norm_native.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/library.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>
#include <lockstep/ddp/sync_batch_norm.h>

#include "ddp/device/device_path.h"
#include "ddp/synced_batch_norm.h"

namespace lockstep {
namespace {

// The mark of a converted module, kept as a gradient hook on its running_mean, which never has a
// gradient: lives and dies with that tensor, and stays where .to() gives the tensor other data.
struct SyncMark : torch::autograd::FunctionPreHook {
  SyncMark(Group the_group, std::weak_ptr<torch::nn::Module> the_module, bool is_tracked)
      : group(std::move(the_group)), module(std::move(the_module)), tracks_stats(is_tracked) {}

  torch::autograd::variable_list operator()(
      const torch::autograd::variable_list& gradients) override {
    return gradients;
  }

  // BatchNorm's operator says "training" also in eval mode if there are no running statistics.
  bool is_training() const {
    const auto locked = module.lock();
    return !locked || locked->is_training();
  }

  Group group;
  std::weak_ptr<torch::nn::Module> module;
  bool tracks_stats;
};

at::Tensor value_of(const std::optional<at::Tensor>& tensor) {
  return tensor.value_or(at::Tensor());
}

const SyncMark* mark_on(const std::optional<at::Tensor>& tensor) {
  if (!tensor || !tensor->defined() || !torch::autograd::impl::get_autograd_meta(*tensor)) {
    return nullptr;
  }
  for (const auto& hook : torch::autograd::impl::hooks(*tensor)) {
    if (const auto* mark = dynamic_cast<const SyncMark*>(hook.get())) {
      return mark;
    }
  }
  return nullptr;
}

// Stands before libtorch's aten::batch_norm.
at::Tensor batch_norm(const at::Tensor& input, const std::optional<at::Tensor>& weight,
                      const std::optional<at::Tensor>& bias,
                      const std::optional<at::Tensor>& running_mean,
                      const std::optional<at::Tensor>& running_var, bool training, double momentum,
                      double eps, bool cudnn_enabled) {
  const SyncMark* mark = training ? mark_on(running_mean) : nullptr;
  if (mark == nullptr || mark->group.size() == 1 || !mark->is_training()) {
    // A module without running statistics was given a running_mean to carry the mark.
    const bool has_stats = mark == nullptr || mark->tracks_stats;
    return at::native::batch_norm(input, weight, bias, has_stats ? running_mean : std::nullopt,
                                  running_var, training, momentum, eps, cudnn_enabled);
  }
  ddp::BatchNormTensors tensors{value_of(weight), value_of(bias)};
  if (mark->tracks_stats) {
    tensors.running_mean = value_of(running_mean);
    tensors.running_var = value_of(running_var);
  }
  ddp::check_batch_norm_input(input, input.dim() < 2 ? 0 : input.size(1));
  return ddp::synced_batch_norm(input, tensors, {.momentum = momentum, .eps = eps}, mark->group);
}

// Once per process. Both keys of each: with a kernel for CPU alone libtorch would look for its
// derivative.
void stand_before_batch_norm() {
  static const std::vector<torch::Library> libraries = [] {
    std::vector<torch::Library> made;
    for (const auto key : {c10::DispatchKey::CPU, c10::DispatchKey::AutogradCPU,
                           c10::DispatchKey::CUDA, c10::DispatchKey::AutogradCUDA}) {
      made.emplace_back(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
      made.back().impl("batch_norm", TORCH_FN(batch_norm));
    }
    log::info("ddp", "aten::batch_norm now passes through lockstep: BatchNorm modules are synced");
    return made;
  }();
}

template <typename BatchNorm>
bool mark_module(torch::nn::Module& module, const Group& group) {
  auto* const norm = dynamic_cast<BatchNorm*>(&module);
  if (norm == nullptr) {
    return false;
  }
  const bool tracks_stats = norm->options.track_running_stats();
  if (!tracks_stats && !norm->running_mean.defined()) {
    norm->running_mean = at::zeros({norm->options.num_features()});  // not registered: not saved
  }
  torch::autograd::impl::clear_hooks(norm->running_mean);
  torch::autograd::impl::add_hook(
      norm->running_mean, std::make_unique<SyncMark>(group, module.weak_from_this(), tracks_stats));
  return true;
}

bool mark_if_batch_norm(torch::nn::Module& module, const Group& group) {
  return mark_module<torch::nn::BatchNorm1dImpl>(module, group) ||
         mark_module<torch::nn::BatchNorm2dImpl>(module, group) ||
         mark_module<torch::nn::BatchNorm3dImpl>(module, group);
}

}  // namespace

SyncBatchNormImpl::SyncBatchNormImpl(const torch::nn::BatchNormOptions& norm_options, Group group)
    : NormImplBase(norm_options), group_(std::move(group)) {}

void SyncBatchNormImpl::_check_input_dim(const torch::Tensor& input) {
  ddp::check_batch_norm_input(input, options.num_features());
}

torch::Tensor SyncBatchNormImpl::forward(const torch::Tensor& input) {
  _check_input_dim(input);
  const bool updates_stats = is_training() && options.track_running_stats();
  const bool is_synced = is_training() && group_.size() > 1;
  double momentum = options.momentum().value_or(0.0);
  torch::Tensor share;
  if (updates_stats && !options.momentum()) {
    if (is_synced && ddp::takes_device_path(num_batches_tracked.device())) {
      share = (num_batches_tracked + 1).to(torch::kDouble).reciprocal();
    } else {
      momentum = 1.0 / static_cast<double>(num_batches_tracked.item<int64_t>() + 1);
    }
  }
  torch::Tensor output;
  if (is_synced) {
    output = ddp::synced_batch_norm(input, {weight, bias, running_mean, running_var},
                                    {.momentum = momentum, .eps = options.eps(), .share = share},
                                    group_);
  } else {
    if (is_training() && options.num_features() > 0) {
      ddp::check_values_per_channel(
          static_cast<double>(input.numel()) / static_cast<double>(options.num_features()), input);
    }
    output = at::batch_norm(input, weight, bias, running_mean, running_var,
                            is_training() || !options.track_running_stats(), momentum,
                            options.eps(), false);
  }
  if (updates_stats) {
    num_batches_tracked += 1;
  }
  return output;
}

void SyncBatchNormImpl::pretty_print(std::ostream& stream) const {
  stream << fmt::format(
      "lockstep::SyncBatchNorm({}, eps={}, momentum={}, affine={}, track_running_stats={})",
      options.num_features(), options.eps(),
      options.momentum() ? fmt::format("{}", *options.momentum()) : "None", options.affine(),
      options.track_running_stats());
}

int64_t convert_sync_batch_norm(torch::nn::Module& module, const Group& group) {
  stand_before_batch_norm();
  std::set<const torch::nn::Module*> converted;  // one that is registered twice counts once
  const auto convert = [&](torch::nn::Module& candidate) {
    if (mark_if_batch_norm(candidate, group)) {
      converted.insert(&candidate);
    }
  };
  convert(module);
  for (const auto& child : module.modules(/*include_self=*/false)) {
    convert(*child);
  }
  return static_cast<int64_t>(converted.size());
}

}  // namespace lockstep
