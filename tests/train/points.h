#pragma once

// Data that a small net can learn: points, and the class of each.

#include <ATen/ATen.h>

#include <lockstep/train/trainer.h>

namespace lockstep::test {

inline std::shared_ptr<const Dataset> points(int64_t num, double shift) {
  const at::Tensor input =
      at::arange(num * 6, at::kFloat).mul(1.3).add(shift).sin().reshape({num, 6});
  return make_dataset({input, input.sum(1).mul(2).remainder(3).to(at::kLong)});
}

inline TrainerData points_to_learn() {
  return {.train = points(140, 0), .held_out = points(37, 0.5)};
}

}  // namespace lockstep::test
