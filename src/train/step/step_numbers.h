#pragma once

// The numbers that differ from step to step, for a step that is recorded once and replayed: where
// operations take numbers as arguments, a replay would repeat those of the recording. So they are
// tensors on the device, which one copy from pinned memory sets before each replay, and what the
// step comes to is read in one copy after it. They mean what the fields of LockstepStepState mean
// to lockstep's own kernels, but are float64, as the host's: both ways then have the same bits.

#include <limits>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep::train {

class StepNumbers {
 public:
  struct Values {
    double loss_scale = 1;
    double max_norm = std::numeric_limits<double>::infinity();    // of gradients with that scale
    double norm_limit = std::numeric_limits<double>::infinity();  // without: above it is a bad step
    std::vector<double> lrs;                                      // as many as there are
  };
  struct Result {
    double norm = 0;  // of all gradients, with the loss scale
    bool skipped = false;
  };

  StepNumbers(at::Device device, size_t num_lrs);

  // Queues the copy. What was written before must have been used: result() has been called since.
  void write(const Values& values);

  // For the work that is recorded: begin() comes first, then the numbers as tensors of no
  // dimension, in float64 and the learning rates in float32.
  void begin();
  at::Tensor loss_scale() const { return number(LossScale); }
  at::Tensor max_norm() const { return number(MaxNorm); }
  std::vector<at::Tensor> lrs() const;

  // Decides whether the step is skipped, as the host will when it reads the norm: it is if the norm
  // is not finite or above the limit. Returns a float32, 1 or 0.
  at::Tensor judge(const at::Tensor& norm);

  // What judge() was given and found. Waits for the device.
  Result result() const;

 private:
  enum Place { LossScale, MaxNorm, NormLimit, FirstLr };
  at::Tensor number(Place place) const { return numbers_.select(0, place); }

  at::Tensor host_;  // pinned, if it is copied from
  at::Tensor numbers_;
  at::Tensor lrs_;
  at::Tensor result_;
};

}  // namespace lockstep::train
