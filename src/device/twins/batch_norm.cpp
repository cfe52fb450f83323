#include <algorithm>
#include <cmath>

#include "device/twins/twins.h"

namespace lockstep::device {
namespace {

struct Statistics {
  double mean = 0;
  double variance = 0;  // biased
};

Statistics statistics_of(const LockstepBatchNormForward& a, int64_t channel) {
  const Elements x(a.x, a.type);
  const auto rows = static_cast<double>(a.rows);
  Statistics result;
  for (int64_t row = 0; row < a.rows; ++row) {
    result.mean += x[row * a.channels + channel] / rows;
  }
  for (int64_t row = 0; row < a.rows; ++row) {
    const double away = x[row * a.channels + channel] - result.mean;
    result.variance += away * away / rows;
  }
  return result;
}

}  // namespace

const char* twin_batch_norm_forward(const LockstepBatchNormForward* arguments, void*) {
  const LockstepBatchNormForward& a = *arguments;
  const Elements x(a.x, a.type);
  const Elements residual(a.residual, a.type);
  const Elements out(a.out, a.type);
  const auto rows = static_cast<double>(a.rows);
  for (int64_t channel = 0; channel < a.channels; ++channel) {
    const auto [mean, variance] = statistics_of(a, channel);
    const double rstd = 1 / std::sqrt(variance + a.epsilon);
    a.mean[channel] = static_cast<float>(mean);
    a.rstd[channel] = static_cast<float>(rstd);
    if (a.running_mean) {
      const double unbiased = variance * rows / std::max(rows - 1, 1.0);
      float& to_mean = a.running_mean[channel];
      float& to_var = a.running_var[channel];
      to_mean = static_cast<float>((1.0 - a.momentum) * to_mean + a.momentum * mean);
      to_var = static_cast<float>((1.0 - a.momentum) * to_var + a.momentum * unbiased);
    }
    for (int64_t at = channel; at < a.rows * a.channels; at += a.channels) {
      double value = (x[at] - mean) * rstd * a.weight[channel] + a.bias[channel];
      value += residual ? residual[at] : 0.0f;
      out.set(at, static_cast<float>(a.relu && value < 0 ? 0 : value));
    }
  }
  return nullptr;
}

const char* twin_batch_norm_backward(const LockstepBatchNormBackward* arguments, void*) {
  const LockstepBatchNormBackward& a = *arguments;
  const Elements x(a.x, a.type);
  const Elements out(a.out, a.type);
  const Elements grad_out(a.grad_out, a.type);
  const Elements grad_x(a.grad_x, a.type);
  const Elements grad_residual(a.grad_residual, a.type);
  const auto rows = static_cast<double>(a.rows);
  const auto through_relu = [&](int64_t at) {
    return a.relu && out[at] <= 0 ? 0.0f : grad_out[at];
  };
  for (int64_t channel = 0; channel < a.channels; ++channel) {
    const double mean = a.mean[channel];
    const double rstd = a.rstd[channel];
    double weight = 0;
    double bias = 0;
    for (int64_t at = channel; at < a.rows * a.channels; at += a.channels) {
      weight += through_relu(at) * (x[at] - mean) * rstd;
      bias += through_relu(at);
    }
    put_sum(a.grad_weight[channel], weight, a.accumulate != 0);
    put_sum(a.grad_bias[channel], bias, a.accumulate != 0);
    for (int64_t at = channel; at < a.rows * a.channels; at += a.channels) {
      const float grad = through_relu(at);
      const double normal = (x[at] - mean) * rstd;
      grad_x.set(at, static_cast<float>(a.weight[channel] * rstd *
                                        (grad - bias / rows - normal * weight / rows)));
      if (grad_residual) {
        grad_residual.set(at, grad);
      }
    }
  }
  return nullptr;
}

}  // namespace lockstep::device
