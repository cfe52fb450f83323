#include <cmath>
#include <numbers>
#include <vector>

#include "device/twins/twins.h"

namespace lockstep::device {
namespace {

struct Gelu {
  double value;
  double slope;
};

Gelu gelu(int32_t form, double x) {
  if (form == LOCKSTEP_GELU_ERF) {
    const double below = 0.5 * std::erfc(-x / std::numbers::sqrt2);
    const double density = std::exp(-0.5 * x * x) / std::sqrt(2 * std::numbers::pi);
    return {x * below, below + x * density};
  }
  const double scale = std::sqrt(2 / std::numbers::pi);
  const double tangent = std::tanh(scale * (x + 0.044715 * x * x * x));
  const double steep = (1 - tangent * tangent) * scale * (1 + 3 * 0.044715 * x * x);
  return {0.5 * x * (1 + tangent), 0.5 * (1 + tangent) + 0.5 * x * steep};
}

}  // namespace

const char* twin_gelu_forward(const LockstepGeluForward* arguments, void*) {
  const LockstepGeluForward& a = *arguments;
  const Elements x(a.x, a.type);
  const Elements out(a.out, a.type);
  for (int64_t i = 0; i < a.rows * a.columns; ++i) {
    out.set(i, static_cast<float>(gelu(a.form, x[i]).value));
  }
  return nullptr;
}

const char* twin_gelu_backward(const LockstepGeluBackward* arguments, void*) {
  const LockstepGeluBackward& a = *arguments;
  const Elements x(a.x, a.type);
  const Elements grad_out(a.grad_out, a.type);
  const Elements grad_x(a.grad_x, a.type);
  std::vector<double> bias(a.columns);
  for (int64_t i = 0; i < a.rows * a.columns; ++i) {
    const double gradient = grad_out[i] * gelu(a.form, x[i]).slope;
    bias[i % a.columns] += gradient;
    grad_x.set(i, static_cast<float>(gradient));
  }
  for (int64_t i = 0; a.grad_bias && i < a.columns; ++i) {
    put_sum(a.grad_bias[i], bias[i], a.accumulate != 0);
  }
  return nullptr;
}

}  // namespace lockstep::device
