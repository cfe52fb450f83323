#pragma once

// What transformers and torchvision computed, kept in goldens/ by make_goldens.py.

#include <map>
#include <string>

#include <ATen/core/Tensor.h>

#include <lockstep/models/configured_module.h>

#include "support/paths.h"

namespace lockstep::test {

inline const std::string kGoldens = testing_support::in_tree("tests/models/goldens/");

using Tensors = std::map<std::string, at::Tensor>;

Tensors read_tensors(const std::string& path);  // of a safetensors file, whole

// What was asked, "input.*", and what came of it: "output.*", "loss" and "grad.<parameter>".
struct Golden {
  const at::Tensor& at(const std::string& name) const { return tensors.at(name); }
  at::Tensor input(const std::string& name) const;  // undefined: not there

  Tensors tensors;
};

Golden read_golden(const std::string& name);

// Runs `model` forward and backward as make_goldens.py did, with the inputs of `golden`, whichever
// class it is: "output.*", "loss", "grad.*".
Tensors run(ConfiguredModule& model, const Golden& golden);

// The largest difference of any number, in units of the golden tensor's largest (at least 1e-3).
double largest_difference(const at::Tensor& tensor, const at::Tensor& golden);

// Expects every tensor of `golden` but inputs to be in `results`, different by at most `limit`.
void expect_close(const Tensors& results, const Golden& golden, double limit);

// fill() and summary() of make_goldens.py.
at::Tensor fill(const std::string& name, at::IntArrayRef sizes);
at::Tensor summary(const std::string& name, const at::Tensor& gradient);

}  // namespace lockstep::test
