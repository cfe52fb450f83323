#include <algorithm>
#include <cmath>

#include "device/twins/twins.h"

namespace lockstep::device {
namespace {

// Calls `update` for each element of each chunk, and writes the bfloat16 copy.
template <typename Update>
void for_each_element(const LockstepParameterList& list, Update update) {
  for (int64_t i = 0; i < list.num_chunks; ++i) {
    const LockstepChunk& chunk = list.chunks[i];
    const LockstepParameter& parameter = list.parameters[chunk.parameter];
    const Elements grad(parameter.grad, parameter.grad_type);
    const Elements copy(parameter.copy, LOCKSTEP_BFLOAT16);
    const int64_t begin = int64_t{chunk.index} * LOCKSTEP_CHUNK;
    const int64_t end = std::min<int64_t>(begin + LOCKSTEP_CHUNK, parameter.count);
    for (int64_t at = begin; at < end; ++at) {
      update(parameter, at, grad[at]);
      if (copy) {
        copy.set(at, parameter.master[at]);
      }
    }
  }
}

}  // namespace

const char* twin_step_begin(const LockstepStepBegin* arguments, void*) {
  const LockstepStepBegin& a = *arguments;
  LockstepStepState& state = *a.state;
  const double norm = a.sum_of_squares ? std::sqrt(*a.sum_of_squares) * state.grad_scale : 0;
  const bool skips = state.skip != 0 || !std::isfinite(norm);
  const double clip = a.sum_of_squares && state.max_norm > 0 ? state.max_norm / (norm + 1e-6) : 1.0;
  state.norm = static_cast<float>(norm);
  state.skipped = skips ? 1.0f : 0.0f;
  state.factor = static_cast<float>(state.grad_scale * std::fmin(clip, 1.0));
  state.step += skips ? 0 : 1;
  const auto step = static_cast<double>(state.step);
  state.correction1 = static_cast<float>(1 - std::pow(static_cast<double>(a.beta1), step));
  state.correction2 =
      static_cast<float>(std::sqrt(1 - std::pow(static_cast<double>(a.beta2), step)));
  return nullptr;
}

const char* twin_adamw(const LockstepAdamW* arguments, void*) {
  const LockstepAdamW& a = *arguments;
  const LockstepStepState& state = *a.state;
  if (state.skipped != 0) {
    return nullptr;
  }
  for_each_element(a.list, [&](const LockstepParameter& p, int64_t at, float gradient) {
    const double grad = static_cast<double>(gradient) * state.factor;
    const double rate = static_cast<double>(state.learning_rate) * p.rate_factor;
    const double first = a.beta1 * p.moment1[at] + (1.0 - a.beta1) * grad;
    const double second = a.beta2 * p.moment2[at] + (1.0 - a.beta2) * grad * grad;
    p.moment1[at] = static_cast<float>(first);
    p.moment2[at] = static_cast<float>(second);
    const double denominator = std::sqrt(second) / state.correction2 + a.epsilon;
    const double step = rate / state.correction1 * first / denominator;
    p.master[at] = static_cast<float>(p.master[at] * (1 - rate * p.weight_decay) - step);
  });
  return nullptr;
}

const char* twin_sgd(const LockstepSgd* arguments, void*) {
  const LockstepSgd& a = *arguments;
  const LockstepStepState& state = *a.state;
  if (state.skipped != 0) {
    return nullptr;
  }
  const double keep = state.step <= 1 ? 1.0 : 1.0 - a.dampening;
  for_each_element(a.list, [&](const LockstepParameter& p, int64_t at, float gradient) {
    double grad = static_cast<double>(gradient) * state.factor +
                  static_cast<double>(p.weight_decay) * p.master[at];
    if (a.momentum != 0) {
      const double buffer = static_cast<double>(a.momentum) * p.moment1[at] + keep * grad;
      p.moment1[at] = static_cast<float>(buffer);
      grad = a.nesterov ? grad + a.momentum * buffer : buffer;
    }
    const double rate = static_cast<double>(state.learning_rate) * p.rate_factor;
    p.master[at] = static_cast<float>(p.master[at] - rate * grad);
  });
  return nullptr;
}

}  // namespace lockstep::device
