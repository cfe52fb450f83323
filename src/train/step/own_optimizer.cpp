#include "train/step/own_optimizer.h"

#include <algorithm>
#include <set>

#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/module.h>
#include <torch/optim/lbfgs.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

#include "comm/agree.h"
#include "ddp/model_check.h"
#include "train/step/optimizer_kinds.h"
#include "train/step/out_of_memory.h"

namespace lockstep::train {
namespace {

using torch::optim::OptimizerOptions;
using torch::optim::OptimizerParamState;

constexpr int64_t kNoState = -1;  // in the place of a number of steps

// A parameter and what the optimizer knows of it.
struct Updated {
  std::string name;
  at::Tensor parameter;
  size_t group = 0;
};

std::vector<UpdateGroup> trained(const torch::nn::Module& module) {
  UpdateGroup all;
  for (const auto& [name, parameter] : unique_parameters(module)) {
    if (parameter.requires_grad()) {
      all.names.push_back(name);
      all.parameters.push_back(parameter);
    }
  }
  return {all};
}

class OwnOptimizer : public Optimizer {
 public:
  OwnOptimizer(const torch::nn::Module& module, std::unique_ptr<torch::optim::Optimizer> optimizer)
      : Optimizer(trained(module)),
        optimizer_(std::move(optimizer)),
        kind_(find_kind(*optimizer_)) {
    auto& groups = optimizer_->param_groups();
    for (size_t i = 0; i < groups.size(); ++i) {
      drop_repeats(groups[i].params());
      add_group(module, i, groups[i]);
    }
    if (updated_.empty()) {
      throw UsageError("trainer: the optimizer that make_optimizer made has no parameters");
    }
  }

  // Whether its state can be saved.
  bool is_known() const { return kind_ != nullptr; }

  // How many parameters would get gradients in vain.
  size_t num_left_out() const {
    const auto& all = groups_.front().parameters;
    return static_cast<size_t>(std::count_if(
        all.begin(), all.end(),
        [&](const at::Tensor& parameter) { return find_updated(parameter) == nullptr; }));
  }

  void step(double share) override {
    auto& groups = optimizer_->param_groups();
    for (size_t i = 0; i < groups.size(); ++i) {
      groups[i].options().set_lr(first_lrs_[i] * share);
    }
    optimizer_->step();
  }

  double shown_lr(double share) const override { return first_lrs_.front() * share; }

  std::vector<NamedTensor> state() const override {
    std::vector<NamedTensor> state;
    if (kind_ == nullptr) {
      return state;
    }
    const at::Tensor steps = at::full({std::ssize(updated_)}, kNoState, at::kLong);
    state.push_back({"steps", steps});
    for (size_t i = 0; i < updated_.size(); ++i) {
      OptimizerParamState* const known = find_state(updated_[i]);
      if (known != nullptr) {
        const int64_t* const made = kind_->steps(*known);
        steps.mutable_data_ptr<int64_t>()[i] = made != nullptr ? *made : 0;
      }
      for (const StateSlot* slot : slots_of(updated_[i])) {
        const at::Tensor tensor = known != nullptr ? slot->tensor(*known) : at::Tensor();
        state.push_back({name_of(*slot, updated_[i]),
                         tensor.defined() ? tensor : at::zeros_like(updated_[i].parameter)});
      }
    }
    return state;
  }

  // libtorch makes the state of a parameter in its first step. For a checkpoint to be read into,
  // all of them are made here, and end_restore() drops those that the checkpoint has not.
  std::vector<NamedTensor> begin_restore() override {
    for (const Updated& one : updated_) {
      if (slots_of(one).empty()) {
        continue;
      }
      auto& known = optimizer_->state()[one.parameter.unsafeGetTensorImpl()];
      known = kind_->make_state();
      for (const StateSlot* slot : slots_of(one)) {
        slot->tensor(*known) = at::zeros_like(one.parameter.detach());
      }
    }
    std::vector<NamedTensor> targets = state();
    if (!targets.empty()) {
      restored_steps_ = targets.front().tensor;
    }
    return targets;
  }

  void end_restore() override {
    for (size_t i = 0; i < updated_.size() && restored_steps_.defined(); ++i) {
      const int64_t steps = restored_steps_.const_data_ptr<int64_t>()[i];
      OptimizerParamState* const known = find_state(updated_[i]);
      if (steps == kNoState) {
        optimizer_->state().erase(updated_[i].parameter.unsafeGetTensorImpl());
      } else if (known != nullptr && kind_->steps(*known) != nullptr) {
        *kind_->steps(*known) = steps;
      }
    }
    restored_steps_.reset();
  }

  std::vector<std::string> description() const override {
    std::vector<std::string> lines = {
        fmt::format("optimizer = torch::optim::{}", kind_ != nullptr ? kind_->name : "Optimizer")};
    const auto& groups = optimizer_->param_groups();
    for (size_t i = 0; i < groups.size(); ++i) {
      const auto options = groups[i].options().clone();  // with the rate that it began with
      options->set_lr(first_lrs_[i]);
      lines.push_back(fmt::format(
          "group {} has {}", i,
          kind_ != nullptr ? kind_->describe(*options) : fmt::format("lr = {}", first_lrs_[i])));
    }
    for (const Updated& one : updated_) {
      lines.push_back(fmt::format("{} is in group {}", one.name, one.group));
    }
    return lines;
  }

 private:
  // module.parameters() has a tied weight once for each of its names, and libtorch would update it
  // as often.
  static void drop_repeats(std::vector<at::Tensor>& parameters) {
    std::set<const void*> seen;
    std::erase_if(parameters, [&](const at::Tensor& parameter) {
      return !seen.insert(parameter.unsafeGetTensorImpl()).second;
    });
  }

  void add_group(const torch::nn::Module& module, size_t number,
                 const torch::optim::OptimizerParamGroup& group) {
    const std::vector<NamedTensor> known = unique_parameters(module);
    for (const at::Tensor& parameter : group.params()) {
      const auto found = std::find_if(known.begin(), known.end(), [&](const NamedTensor& one) {
        return one.tensor.is_same(parameter);
      });
      if (found == known.end()) {
        throw UsageError(
            "trainer: a parameter of shape {} in group {} of the optimizer is none of the "
            "module's; make_optimizer must take the parameters of the module that it is given",
            fmt::format("[{}]", fmt::join(parameter.sizes(), ", ")), number);
      }
      if (find_updated(parameter) != nullptr) {
        throw UsageError(
            "trainer: {} is in two groups of the optimizer, the second time in group {}, so that "
            "it "
            "would be updated twice in a step; leave it out there",
            found->name, number);
      }
      updated_.push_back({found->name, parameter, number});
    }
    first_lrs_.push_back(group.options().get_lr());
  }

  const Updated* find_updated(const at::Tensor& parameter) const {
    const auto found = std::find_if(updated_.begin(), updated_.end(), [&](const Updated& one) {
      return one.parameter.is_same(parameter);
    });
    return found != updated_.end() ? &*found : nullptr;
  }

  std::vector<const StateSlot*> slots_of(const Updated& one) const {
    std::vector<const StateSlot*> slots;
    if (kind_ != nullptr) {
      for (const StateSlot& slot : kind_->slots) {
        if (slot.is_kept(optimizer_->param_groups()[one.group].options())) {
          slots.push_back(&slot);
        }
      }
    }
    return slots;
  }

  static std::string name_of(const StateSlot& slot, const Updated& one) {
    return std::string(slot.name) + "." + one.name;
  }

  // Null before the parameter's first step.
  OptimizerParamState* find_state(const Updated& one) const {
    const auto& all = optimizer_->state();
    const auto found = all.find(one.parameter.unsafeGetTensorImpl());
    return found != all.end() ? found->second.get() : nullptr;
  }

  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  const OptimizerKindInfo* kind_;  // null: its state is not known
  std::vector<Updated> updated_;
  std::vector<double> first_lrs_;  // of the groups
  at::Tensor restored_steps_;
};

std::unique_ptr<torch::optim::Optimizer> call(torch::nn::Module& module,
                                              const TrainerOptions& options) {
  std::unique_ptr<torch::optim::Optimizer> optimizer = options.make_optimizer(module);
  if (!optimizer) {
    throw UsageError("trainer: make_optimizer returned no optimizer");
  }
  if (dynamic_cast<const torch::optim::LBFGS*>(optimizer.get()) != nullptr) {
    throw UsageError(
        "trainer: make_optimizer made an LBFGS, which computes the loss several times in one step "
        "by a closure, while the trainer computes it once; take {}, or write a loop of your own "
        "around DistributedDataParallel",
        known_kinds());
  }
  return optimizer;
}

std::unique_ptr<OwnOptimizer> make(torch::nn::Module& module, const TrainerOptions& options) {
  std::unique_ptr<OwnOptimizer> own;
  try {
    own = std::make_unique<OwnOptimizer>(module, call(module, options));
  } catch (const c10::OutOfMemoryError& error) {
    throw_out_of_memory(error, "the optimizer that make_optimizer makes",
                        "use a smaller model, or an optimizer that keeps less");
  } catch (const c10::Error& error) {  // libtorch's, about an option or about options without lr
    throw UsageError("trainer: make_optimizer: {}", error.what_without_backtrace());
  }
  if (!own->is_known() && !options.checkpoint_dir.empty()) {
    throw UsageError(
        "trainer: make_optimizer made an optimizer of a class whose state lockstep does not know, "
        "so that a checkpoint would miss it; it knows libtorch's {} (and no classes derived from "
        "them). Take one of these, or leave checkpoint_dir empty",
        known_kinds());
  }
  return own;
}

}  // namespace

std::unique_ptr<Optimizer> make_own_optimizer(torch::nn::Module& module,
                                              const TrainerOptions& options, Group& group) {
  std::unique_ptr<OwnOptimizer> own;
  comm::throw_together(group, comm::caught([&] { own = make(module, options); }));
  if (group.size() > 1) {
    ddp::check_same_lines(group, own->description(),
                          {.what = "trainer: the optimizer differs between ranks",
                           .advice = "make the same optimizer on every rank"});
  }
  if (const size_t left_out = own->num_left_out(); left_out > 0 && group.rank() == 0) {
    log::info("train",
              "{} parameters are in no group of the optimizer and stay as they are; without "
              "requires_grad they would not cost gradients either",
              left_out);
  }
  return own;
}

}  // namespace lockstep::train
