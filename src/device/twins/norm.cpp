#include <cmath>
#include <vector>

#include "device/twins/twins.h"

namespace lockstep::device {

const char* twin_norm_forward(const LockstepNormForward* arguments, void*) {
  const LockstepNormForward& a = *arguments;
  const Elements x(a.x, a.type);
  const Elements branch(a.branch, a.type);
  const Elements sum(a.branch ? a.sum : const_cast<void*>(a.x), a.type);
  const Elements out(a.out, a.type);
  for (int64_t row = 0; row < a.rows; ++row) {
    const int64_t begin = row * a.columns;
    double mean = 0;
    for (int64_t i = begin; i < begin + a.columns; ++i) {
      mean += branch ? sum.set(i, x[i] + dropped(a.dropout, i, branch[i])) : x[i];
    }
    mean /= static_cast<double>(a.columns);
    double variance = 0;
    for (int64_t i = begin; i < begin + a.columns; ++i) {
      variance += (sum[i] - mean) * (sum[i] - mean);
    }
    const double rstd = 1 / std::sqrt(variance / static_cast<double>(a.columns) + a.epsilon);
    a.mean[row] = static_cast<float>(mean);
    a.rstd[row] = static_cast<float>(rstd);
    for (int64_t i = 0; i < a.columns; ++i) {
      const double normal = (sum[begin + i] - mean) * rstd;
      out.set(begin + i, static_cast<float>(normal * a.weight[i] + a.bias[i]));
    }
  }
  return nullptr;
}

namespace {

// The gradient of sum, in float32 as it is before it is rounded.
void row_gradient(const LockstepNormBackward& a, int64_t row, std::vector<float>& gradient) {
  const Elements grad_out(a.grad_out, a.type);
  const Elements sum(a.sum, a.type);
  const Elements grad_sum(a.grad_sum, a.type);
  const int64_t begin = row * a.columns;
  const auto normal = [&](int64_t i) {
    return (static_cast<double>(sum[begin + i]) - a.mean[row]) * a.rstd[row];
  };
  double first = 0;
  double second = 0;
  for (int64_t i = 0; i < a.columns; ++i) {
    const double weighted = static_cast<double>(grad_out[begin + i]) * a.weight[i];
    first += weighted;
    second += weighted * normal(i);
  }
  first /= static_cast<double>(a.columns);
  second /= static_cast<double>(a.columns);
  for (int64_t i = 0; i < a.columns; ++i) {
    const double weighted = static_cast<double>(grad_out[begin + i]) * a.weight[i];
    const double through = a.rstd[row] * (weighted - first - normal(i) * second);
    gradient[i] = static_cast<float>(through + (grad_sum ? grad_sum[begin + i] : 0.0f));
  }
}

}  // namespace

const char* twin_norm_backward(const LockstepNormBackward* arguments, void*) {
  const LockstepNormBackward& a = *arguments;
  const Elements grad_out(a.grad_out, a.type);
  const Elements sum(a.sum, a.type);
  const Elements grad_x(a.grad_x, a.type);
  const Elements grad_branch(a.grad_branch, a.type);
  std::vector<double> weight(a.columns);
  std::vector<double> bias(a.columns);
  std::vector<double> branch_bias(a.columns);
  std::vector<float> gradient(a.columns);
  for (int64_t row = 0; row < a.rows; ++row) {
    const int64_t begin = row * a.columns;
    row_gradient(a, row, gradient);
    for (int64_t i = 0; i < a.columns; ++i) {
      const float grad = grad_out[begin + i];
      weight[i] += grad * (static_cast<double>(sum[begin + i]) - a.mean[row]) * a.rstd[row];
      bias[i] += grad;
      const float branch = dropped(a.dropout, begin + i, gradient[i]);
      branch_bias[i] += branch;
      grad_x.set(begin + i, gradient[i]);
      if (grad_branch) {
        grad_branch.set(begin + i, branch);
      }
    }
  }
  for (int64_t i = 0; i < a.columns; ++i) {
    put_sum(a.grad_weight[i], weight[i], a.accumulate != 0);
    put_sum(a.grad_bias[i], bias[i], a.accumulate != 0);
    if (a.grad_branch_bias) {
      put_sum(a.grad_branch_bias[i], branch_bias[i], a.accumulate != 0);
    }
  }
  return nullptr;
}

}  // namespace lockstep::device
