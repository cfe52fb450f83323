#pragma once

// Whether a gradient is the derivative of what is computed: autograd's result beside differences of
// values, in float64, for functions in which ranks exchange something, too.
//
// Example:
//   testing_support::gradcheck(group, {input, weight}, [&](const auto& x) {
//     return my_function(x[0], x[1]);
//   });

#include <cmath>
#include <functional>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/comm/group.h>

namespace lockstep::testing_support {

struct GradcheckOptions {
  double step = 1e-5;       // how far each value is moved, both ways
  double tolerance = 1e-7;  // relative to 1 + the size of the derivative
};

// Collective: checks the derivative of the sum of all ranks' outputs, weighed by random numbers,
// for each element of this rank's inputs (float64, on any device). Ranks may have inputs of
// different sizes, but have equally many.
inline void gradcheck(Group& group, std::vector<at::Tensor> inputs,
                      const std::function<at::Tensor(const std::vector<at::Tensor>&)>& function,
                      const GradcheckOptions& options = {}) {
  for (at::Tensor& input : inputs) {
    ASSERT_EQ(input.scalar_type(), at::kDouble);
    input = input.detach().clone().set_requires_grad(true);
  }
  const at::Tensor output = function(inputs);
  const auto generator =
      at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(1000 + group.rank()));
  const at::Tensor weights = at::randn(output.sizes(), generator, at::kDouble).to(output.device());
  (output * weights).sum().backward();

  const auto value_of_all = [&] {
    const torch::NoGradGuard no_grad;
    at::Tensor value = (function(inputs) * weights).sum().cpu().reshape({1});
    group.all_reduce(value);
    return value.item<double>();
  };
  for (int rank = 0; rank < group.size(); ++rank) {
    for (size_t i = 0; i < inputs.size(); ++i) {
      at::Tensor count = at::full({1}, inputs[i].numel(), at::kLong);
      group.broadcast(count, {.root = rank});
      for (int64_t at = 0; at < count.item<int64_t>(); ++at) {
        const bool is_mine = rank == group.rank();
        const auto move = [&](double by) {
          if (is_mine) {
            inputs[i].data().view(-1)[at] += by;
          }
        };
        move(options.step);
        const double above = value_of_all();
        move(-2 * options.step);
        const double below = value_of_all();
        move(options.step);
        if (is_mine) {
          const double expected = (above - below) / (2 * options.step);
          const double found = inputs[i].grad().reshape(-1)[at].item<double>();
          EXPECT_NEAR(found, expected, options.tolerance * (1 + std::abs(expected)))
              << "input " << i << ", element " << at << ", rank " << rank;
        }
      }
    }
  }
}

}  // namespace lockstep::testing_support
