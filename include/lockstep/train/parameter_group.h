#pragma once

// Which parameters a Trainer updates in a way of their own, and optimizers of one's own.
//
// Example:
//   lockstep::TrainerOptions options{
//       .lr = 1e-3,
//       .groups = {{.name = "body", .pattern = "^bert\\.", .lr_scale = 0.1},
//                  {.name = "words", .pattern = "embeddings", .is_frozen = true}}};
//
// Example:
//   lockstep::TrainerOptions options;
//   options.make_optimizer = [](torch::nn::Module& module) {
//     return std::make_unique<torch::optim::RMSprop>(module.parameters(),
//                                                    torch::optim::RMSpropOptions(1e-3));
//   };

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include <ATen/core/Tensor.h>

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace lockstep {

// Some parameters of a model, for TrainerOptions::groups. A parameter belongs to the first group
// that takes it; those that no group takes are updated as TrainerOptions says.
struct ParameterGroup {
  std::string name;  // REQUIRED: for messages and checkpoints; each group has its own

  // REQUIRED, one of the two: a regular expression (ECMAScript) that is found anywhere in the
  // parameter's name, such as "\\.bias$|norm", or a function that is given name and parameter. A
  // group that takes no parameter is a UsageError.
  //
  // The Trainer's constructor asks once about each parameter that no earlier group has taken, in
  // the order of named_parameters() and before it freezes anything; the answer holds for the whole
  // run, whatever becomes of the parameter. A run that goes on from a checkpoint asks anew: other
  // answers than those that it began with are a UsageError that names the first.
  std::string pattern = {};
  std::function<bool(const std::string& name, const at::Tensor& parameter)> takes = {};

  double lr_scale =
      1;  // in [0, 1000]: the group's learning rate is that of the schedule times this

  // For all parameters of the group. Empty: as without a group, TrainerOptions::weight_decay for
  // matrices and none for vectors.
  std::optional<double> weight_decay = {};

  // Its parameters are not trained: the trainer sets their requires_grad to false, for good.
  bool is_frozen = false;
};

// Makes the optimizer of a run, for TrainerOptions::make_optimizer. The trainer calls it once, on
// every rank, when the module has rank 0's parameters and is on the device on which it is trained,
// so that the optimizer is made for the tensors that it will update. Its parameters must be the
// module's; what it leaves out is not trained, and neither is what requires no gradient. A tied
// weight, which module.parameters() has once for each of its names, is updated once.
//
// In each step the trainer sets the learning rate of each of its groups to the one that the group
// began with times the schedule's share, which is 1 after the warm-up and min_lr_share at the end,
// and calls step(). A loss scale and clip_norm come before.
//
// Checkpoints hold the state of libtorch's SGD, Adam, AdamW, RMSprop and Adagrad: a resumed run
// goes on with the same bits. Other classes, and classes derived from these, are accepted without a
// checkpoint_dir. LBFGS is refused, since it needs a closure that computes the loss again.
using OptimizerFactory =
    std::function<std::unique_ptr<torch::optim::Optimizer>(torch::nn::Module& module)>;

}  // namespace lockstep
