#pragma once

// A model judged by held-out samples, each counted once, by all ranks together.

#include <memory>

#include <lockstep/train/trainer.h>

#include "device/copies.h"

namespace lockstep::train {

struct EvaluateOptions {
  int64_t batch_size = 1;
  int workers = 2;
  Precision precision = Precision::Float32;
  at::Device device = at::kCPU;                 // of the module
  std::shared_ptr<device::Copies> copies = {};  // as BatchesOptions::copies
};

// Collective. The batches are the same ones whatever the number of ranks, and are summed in their
// own order: so is the result, bit for bit. The module is left in the mode it was in.
Evaluation evaluate(TrainingTask& task, const std::shared_ptr<const Dataset>& data, Group& group,
                    const EvaluateOptions& options);

}  // namespace lockstep::train
