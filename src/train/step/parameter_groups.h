#pragma once

// TrainerOptions::groups, applied to the parameters of a model.

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <lockstep/train/trainer.h>
#include <lockstep/weights/save.h>

namespace torch::nn {
class Module;
}

namespace lockstep::train {

// Parameters that are updated alike.
struct UpdateGroup {
  double lr_scale = 1;
  double weight_decay = 0;
  std::vector<std::string> names = {};
  std::vector<at::Tensor> parameters = {};
};

// The parameters of a module, each once: of the names of a tied weight the first counts.
std::vector<NamedTensor> unique_parameters(const torch::nn::Module& module);

// Each parameter of a module with its group. Groups are asked when this is made, and never again:
// what they look at, such as requires_grad, may be changed by what follows.
class AssignedParameters {
 public:
  // Throws UsageError for groups that cannot be.
  AssignedParameters(const torch::nn::Module& module, const TrainerOptions& options);
  AssignedParameters(AssignedParameters&&) = default;
  AssignedParameters(const AssignedParameters&) = delete;
  AssignedParameters& operator=(const AssignedParameters&) = delete;

  // Takes requires_grad from the parameters of frozen groups.
  void freeze() const;

  // Every parameter that requires a gradient and is not frozen. Parameters of two or more
  // dimensions are decayed, vectors (biases, norms) are not, unless their group says otherwise.
  // Throws UsageError if groups leave nothing to train.
  std::vector<UpdateGroup> to_update() const;

  // What the groups are and the group of each parameter, to compare between ranks and with a
  // checkpoint; empty without groups.
  std::vector<std::string> description() const;

 private:
  struct Assigned {
    std::string name;
    at::Tensor parameter;
    const ParameterGroup* group = nullptr;  // of groups_; null: none has taken it
  };
  void assign(const torch::nn::Module& module);
  void check_taken() const;
  std::string some_names() const;

  std::vector<ParameterGroup> groups_;
  double weight_decay_;  // of matrices without a group
  std::vector<Assigned> all_;
};

}  // namespace lockstep::train
