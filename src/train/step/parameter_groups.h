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

// Every parameter that requires a gradient and is not frozen. Parameters of two or more dimensions
// are decayed, vectors (biases, norms) are not, unless their group says otherwise. Throws
// UsageError for groups that cannot be.
std::vector<UpdateGroup> group_parameters(const torch::nn::Module& module,
                                          const TrainerOptions& options);

// Takes requires_grad from the parameters of frozen groups. Throws UsageError as above.
void freeze_parameters(const torch::nn::Module& module, const TrainerOptions& options);

// What the groups are and the group of each parameter, to compare between ranks and with a
// checkpoint; empty without groups.
std::vector<std::string> describe_groups(const torch::nn::Module& module,
                                         const TrainerOptions& options);

}  // namespace lockstep::train
