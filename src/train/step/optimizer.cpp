#include "train/step/optimizer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_sign.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <lockstep/base/error.h>

#include "ddp/device/device_path.h"

namespace lockstep::train {
namespace {

using Tensors = std::vector<at::Tensor>;

Tensors zeros_beside(const Tensors& parameters) {
  Tensors zeros;
  for (const at::Tensor& parameter : parameters) {
    zeros.push_back(at::zeros_like(parameter, at::MemoryFormat::Contiguous));
  }
  return zeros;
}

void append(std::vector<NamedTensor>& state, const std::string& what,
            const std::vector<std::string>& names, const Tensors& tensors) {
  for (size_t i = 0; i < names.size(); ++i) {
    state.push_back({what + "." + names[i], tensors[i]});
  }
}

// One group's tensors of those parameters that have a gradient, which mostly are all.
struct Active {
  Tensors parameters, gradients, first, second;

  Active(const Tensors& all, const Tensors& all_first, const Tensors& all_second = {}) {
    for (size_t i = 0; i < all.size(); ++i) {
      if (const at::Tensor& gradient = all[i].grad(); gradient.defined()) {
        parameters.push_back(all[i]);
        gradients.push_back(gradient);
        first.push_back(all_first[i]);
        if (!all_second.empty()) {
          second.push_back(all_second[i]);
        }
      }
    }
  }
};

class BuiltIn : public Optimizer {
 public:
  std::vector<std::string> description() const override { return description_; }

 protected:
  BuiltIn(const char* kind, const AssignedParameters& parameters)
      : Optimizer(parameters.to_update()), description_(parameters.description()) {
    description_.insert(description_.begin(), std::string("optimizer = ") + kind);
  }

 private:
  std::vector<std::string> description_;
};

class AdamW : public BuiltIn {
 public:
  AdamW(const AssignedParameters& parameters, const TrainerOptions& options)
      : BuiltIn("adamw", parameters),
        options_(options),
        // Where the fused kernel looks for it.
        steps_(at::zeros({}, at::TensorOptions(device()).dtype(at::kFloat))) {
    for (const UpdateGroup& group : groups_) {
      means_.push_back(zeros_beside(group.parameters));
      squares_.push_back(zeros_beside(group.parameters));
    }
  }

  void step(double lr) override {
    steps_ += 1;
    update(group_lrs(lr), {});
  }
  bool can_be_recorded() const override { return true; }
  void record_step(const Recorded& numbers) override {
    steps_ += 1 - numbers.skips;
    update(numbers.lrs, numbers.skips);
  }

  std::vector<NamedTensor> state() const override {
    std::vector<NamedTensor> state = {{"steps", steps_}};
    for (size_t i = 0; i < groups_.size(); ++i) {
      append(state, "mean", groups_[i].names, means_[i]);
      append(state, "square", groups_[i].names, squares_[i]);
    }
    return state;
  }

 private:
  // `Rates` are numbers, or tensors that hold them.
  template <typename Rates>
  void update(const Rates& lrs, const std::optional<at::Tensor>& skips) {
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < groups_.size(); ++i) {
      Active active(groups_[i].parameters, means_[i], squares_[i]);
      if (active.parameters.empty()) {
        continue;
      }
      const Tensors steps(active.parameters.size(), steps_);
      at::_fused_adamw_(active.parameters, active.gradients, active.first, active.second, {}, steps,
                        lrs[i], options_.beta1, options_.beta2, groups_[i].weight_decay,
                        options_.eps, /*amsgrad=*/false, /*maximize=*/false, /*grad_scale=*/{},
                        /*found_inf=*/skips);
    }
  }

  TrainerOptions options_;
  at::Tensor steps_;  // of the bias correction
  std::vector<Tensors> means_, squares_;
};

class Sgd : public BuiltIn {
 public:
  Sgd(const AssignedParameters& parameters, const TrainerOptions& options)
      : BuiltIn("sgd", parameters), momentum_(options.momentum) {
    for (const UpdateGroup& group : groups_) {
      momenta_.push_back(zeros_beside(group.parameters));
    }
  }

  void step(double lr) override { update(group_lrs(lr), {}); }
  bool can_be_recorded() const override { return true; }
  void record_step(const Recorded& numbers) override { update(numbers.lrs, numbers.skips); }

  std::vector<NamedTensor> state() const override {
    std::vector<NamedTensor> state;
    for (size_t i = 0; i < groups_.size(); ++i) {
      append(state, "momentum", groups_[i].names, momenta_[i]);
    }
    return state;
  }

 private:
  template <typename Rates>
  void update(const Rates& lrs, const std::optional<at::Tensor>& skips) {
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < groups_.size(); ++i) {
      Active active(groups_[i].parameters, momenta_[i]);
      if (active.parameters.empty()) {
        continue;
      }
      // A momentum of zeros is what the first step would make of none.
      at::_fused_sgd_(active.parameters, active.gradients,
                      momentum_ == 0 ? Tensors() : active.first, groups_[i].weight_decay, momentum_,
                      lrs[i], /*dampening=*/0, /*nesterov=*/false, /*maximize=*/false,
                      /*is_first_step=*/false, /*grad_scale=*/{}, /*found_inf=*/skips);
    }
  }

  double momentum_;
  std::vector<Tensors> momenta_;
};

class Lion : public BuiltIn {
 public:
  Lion(const AssignedParameters& parameters, const TrainerOptions& options)
      : BuiltIn("lion", parameters), options_(options) {
    for (const UpdateGroup& group : groups_) {
      means_.push_back(zeros_beside(group.parameters));
    }
  }

  void step(double lr) override {
    const at::NoGradGuard no_grad;
    const std::vector<double> lrs = group_lrs(lr);
    for (size_t i = 0; i < groups_.size(); ++i) {
      Active active(groups_[i].parameters, means_[i]);
      if (active.parameters.empty()) {
        continue;
      }
      Tensors direction = at::_foreach_lerp(active.first, active.gradients, 1 - options_.beta1);
      at::_foreach_sign_(direction);
      at::_foreach_mul_(active.parameters, 1 - lrs[i] * groups_[i].weight_decay);
      at::_foreach_add_(active.parameters, direction, -lrs[i]);
      at::_foreach_lerp_(active.first, active.gradients, 1 - options_.beta2);
    }
  }

  std::vector<NamedTensor> state() const override {
    std::vector<NamedTensor> state;
    for (size_t i = 0; i < groups_.size(); ++i) {
      append(state, "mean", groups_[i].names, means_[i]);
    }
    return state;
  }

 private:
  TrainerOptions options_;
  std::vector<Tensors> means_;
};

}  // namespace

at::Device Optimizer::device() const {
  for (const UpdateGroup& group : groups_) {
    if (!group.parameters.empty()) {
      return group.parameters.front().device();
    }
  }
  return at::kCPU;
}

void Optimizer::record_step(const Recorded& /*numbers*/) {
  throw InternalError("this optimizer's step cannot be recorded");
}

std::vector<double> Optimizer::group_lrs(double lr) const {
  const bool is_rounded = ddp::takes_device_path(device());
  std::vector<double> lrs;
  for (const UpdateGroup& group : groups_) {
    const double exact = lr * group.lr_scale;
    lrs.push_back(is_rounded ? static_cast<float>(exact) : exact);
  }
  return lrs;
}

void Optimizer::zero_grad() {
  for (UpdateGroup& group : groups_) {
    for (at::Tensor& parameter : group.parameters) {
      parameter.mutable_grad().reset();
    }
  }
}

std::vector<at::Tensor> Optimizer::gradients() const {
  std::vector<at::Tensor> gradients;
  for (const UpdateGroup& group : groups_) {
    for (const at::Tensor& parameter : group.parameters) {
      gradients.push_back(parameter.grad());
    }
  }
  return gradients;
}

void Optimizer::use_gradients(const std::vector<at::Tensor>& gradients) {
  auto next = gradients.begin();
  for (UpdateGroup& group : groups_) {
    for (at::Tensor& parameter : group.parameters) {
      parameter.mutable_grad() = *next++;
    }
  }
}

void Optimizer::scale_gradients(double factor) {
  const Tensors gradients = defined_gradients();
  if (!gradients.empty()) {
    at::_foreach_mul_(gradients, factor);
  }
}

void Optimizer::scale_gradients(const at::Tensor& factor) {
  ddp::queue_scale(defined_gradients(), factor);
}

std::vector<at::Tensor> Optimizer::defined_gradients() const {
  std::vector<at::Tensor> all = gradients();
  std::erase_if(all, [](const at::Tensor& gradient) { return !gradient.defined(); });
  return all;
}

std::unique_ptr<Optimizer> make_optimizer(const AssignedParameters& parameters,
                                          const TrainerOptions& options) {
  switch (options.optimizer) {
    case OptimizerKind::Sgd:
      return std::make_unique<Sgd>(parameters, options);
    case OptimizerKind::Lion:
      return std::make_unique<Lion>(parameters, options);
    case OptimizerKind::AdamW:
      break;
  }
  return std::make_unique<AdamW>(parameters, options);
}

}  // namespace lockstep::train
