#include "cuda/errors.h"
#include "cuda/kernels.h"
#include "cuda/optimizer.cuh"

namespace lockstep::cuda {
namespace {

__global__ void begin_step(LockstepStepBegin a) {
  LockstepStepState& state = *a.state;
  const bool has_norm = a.sum_of_squares != nullptr;
  const double norm = has_norm ? sqrt(*a.sum_of_squares) * state.grad_scale : 0.0;
  state.norm = static_cast<float>(norm);
  const bool skips = state.skip != 0 || !isfinite(norm);
  state.skipped = skips ? 1.0f : 0.0f;
  // As torch::nn::utils::clip_grad_norm_.
  const double clip = has_norm && state.max_norm > 0 ? state.max_norm / (norm + 1e-6) : 1.0;
  state.factor = static_cast<float>(state.grad_scale * fmin(clip, 1.0));
  if (!skips) ++state.step;
  const double step = static_cast<double>(state.step);
  state.correction1 = static_cast<float>(1.0 - pow(static_cast<double>(a.beta1), step));
  state.correction2 = static_cast<float>(sqrt(1.0 - pow(static_cast<double>(a.beta2), step)));
}

constexpr int kThreads = 512;  // and 2 or 3 blocks at once: as many as their registers allow

template <typename Arguments, bool kSecond>
const char* update(const Arguments& a, void* stream) {
  if (a.list.num_chunks > 0) {
    const auto blocks = static_cast<unsigned>(a.list.num_chunks);
    update_chunks<Arguments, kSecond, kThreads, 1, kSecond ? 3 : 2, Use::Once>
        <<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(a);
  }
  return text_of(cudaGetLastError());
}

}  // namespace

const char* step_begin(const LockstepStepBegin* arguments, void* stream) {
  begin_step<<<1, 1, 0, static_cast<cudaStream_t>(stream)>>>(*arguments);
  return text_of(cudaGetLastError());
}

const char* adamw(const LockstepAdamW* arguments, void* stream) {
  return update<LockstepAdamW, true>(*arguments, stream);
}

const char* sgd(const LockstepSgd* arguments, void* stream) {
  return update<LockstepSgd, false>(*arguments, stream);
}

}  // namespace lockstep::cuda
