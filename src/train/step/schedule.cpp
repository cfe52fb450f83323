#include "train/step/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace lockstep::train {

double learning_rate(const TrainerOptions& options, int64_t step, int64_t num_steps) {
  if (step < options.warmup_steps) {
    return options.lr * static_cast<double>(step + 1) / static_cast<double>(options.warmup_steps);
  }
  const int64_t length = std::max<int64_t>(num_steps - options.warmup_steps - 1, 1);
  const double done =
      std::min(1.0, static_cast<double>(step - options.warmup_steps) / static_cast<double>(length));
  double share = 1;  // of the way between lr and its floor that is still to go
  switch (options.schedule) {
    case Schedule::Constant:
      return options.lr;
    case Schedule::Linear:
      share = 1 - done;
      break;
    case Schedule::Cosine:
      share = 0.5 * (1 + std::cos(std::numbers::pi * done));
      break;
  }
  return options.lr * (options.min_lr_share + (1 - options.min_lr_share) * share);
}

}  // namespace lockstep::train
