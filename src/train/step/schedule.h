#pragma once

// The learning rate of a step.

#include <cstdint>

#include <lockstep/train/trainer.h>

namespace lockstep::train {

// Rises in a line over warmup_steps (the first step is not at 0), then follows the schedule, whose
// last step is at min_lr_share of lr. Steps count from 0.
double learning_rate(const TrainerOptions& options, int64_t step, int64_t num_steps);

}  // namespace lockstep::train
