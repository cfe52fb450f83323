#pragma once

// What the options of a run may be: for recipes, which know where a value was written, and for the
// trainer, whose options a program may have filled in itself.

#include "base/config.h"

namespace lockstep::train::ranges {

inline constexpr base::ConfigRange kCount{.min = 1, .max = 1e6};
inline constexpr base::ConfigRange kCountOrNone{.min = 0};
inline constexpr base::ConfigRange kLr{.min = 0, .max = 100};
inline constexpr base::ConfigRange kLrScale{.min = 0, .max = 1000};
inline constexpr base::ConfigRange kWeightDecay{.min = 0, .max = 100};
// At 1 nothing new would ever count, and AdamW's bias correction divides by 1 - beta.
inline constexpr base::ConfigRange kDecay{.min = 0, .max = 1, .excludes_max = true};
// A parameter whose gradient is 0 has 0 / (0 + eps) to move by.
inline constexpr base::ConfigRange kEps{.min = 0, .max = 1, .excludes_min = true};
inline constexpr base::ConfigRange kShare{.min = 0, .max = 1};
inline constexpr base::ConfigRange kEmaDecay{.min = 0, .max = 0.999999};
inline constexpr base::ConfigRange kNorm{.min = 0};
inline constexpr base::ConfigRange kLabelSmoothing{.min = 0, .max = 1, .excludes_max = true};

}  // namespace lockstep::train::ranges
