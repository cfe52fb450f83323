#pragma once

#include <string>

#include "bench/gpu/parity_train.h"

namespace lockstep {

// Writes `folder`/`model`.safetensors, from which another program can train the same and compare:
// initial.NAME, the parameters before the first step; inputs and targets, the batches of all steps
// along a new first dimension; losses, float64, those of `run`.
void dump_for_parity(const std::string& folder, const std::string& model, const ParityRun& run);

}  // namespace lockstep
