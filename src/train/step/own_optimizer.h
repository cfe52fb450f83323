#pragma once

// A torch::optim::Optimizer that the user makes, in the place of one of ours.

#include <memory>

#include <lockstep/comm/group.h>

#include "train/step/optimizer.h"

namespace lockstep::train {

// Calls TrainerOptions::make_optimizer. Collective: throws UsageError on every rank if a rank's
// optimizer cannot be trained with or is not rank 0's.
std::unique_ptr<Optimizer> make_own_optimizer(torch::nn::Module& module,
                                              const TrainerOptions& options, Group& group);

}  // namespace lockstep::train
