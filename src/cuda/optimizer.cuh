#pragma once

#include "cuda/vectors.cuh"
#include "device/plugin_kernels.h"

namespace lockstep::cuda {

__device__ __forceinline__ float root_of(float value) {
  float root;
  asm("sqrt.approx.f32 %0, %1;" : "=f"(root) : "f"(value));
  return root;
}

// What AdamW does to one element; `rate` and `decay` are the parameter's.
struct AdamWRule {
  float beta1;
  float beta2;
  float epsilon;
  float factor;
  float step_size;   // rate / correction1
  float decay;       // 1 - rate * weight decay
  float root_scale;  // 1 / correction2

  __device__ __forceinline__ void operator()(float gradient, float& master, float& moment1,
                                             float& moment2) const {
    gradient *= factor;
    moment1 = fmaf(beta1, moment1, (1.0f - beta1) * gradient);
    moment2 = fmaf(beta2, moment2, (1.0f - beta2) * gradient * gradient);
    // To an ulp or two: the exact functions' slow paths cost registers.
    const float denominator = fmaf(root_of(moment2), root_scale, epsilon);
    master = fmaf(-step_size, __fdividef(moment1, denominator), master * decay);
  }
};

struct SgdRule {
  float factor;
  float rate;
  float weight_decay;
  float momentum;
  float keep;  // 1 - dampening; 1 at the first step
  bool nesterov;

  __device__ __forceinline__ void operator()(float gradient, float& master, float& moment1,
                                             float&) const {
    gradient = fmaf(weight_decay, master, gradient * factor);
    if (momentum != 0) {
      moment1 = fmaf(momentum, moment1, keep * gradient);
      gradient = nesterov ? fmaf(momentum, moment1, gradient) : moment1;
    }
    master = fmaf(-rate, gradient, master);
  }
};

__device__ __forceinline__ AdamWRule rule_of(const LockstepAdamW& a,
                                             const LockstepParameter& parameter) {
  const float rate = a.state->learning_rate * parameter.rate_factor;
  return {.beta1 = a.beta1,
          .beta2 = a.beta2,
          .epsilon = a.epsilon,
          .factor = a.state->factor,
          .step_size = __fdividef(rate, a.state->correction1),
          .decay = 1.0f - rate * parameter.weight_decay,
          .root_scale = __fdividef(1.0f, a.state->correction2)};
}

__device__ __forceinline__ SgdRule rule_of(const LockstepSgd& a,
                                           const LockstepParameter& parameter) {
  return {.factor = a.state->factor,
          .rate = a.state->learning_rate * parameter.rate_factor,
          .weight_decay = parameter.weight_decay,
          .momentum = a.momentum,
          .keep = a.state->step <= 1 ? 1.0f : 1.0f - a.dampening,
          .nesterov = a.nesterov != 0};
}

// N elements of kSteps places each, of which the loads all come before the first store.
template <typename G, int N, int kThreads, int kSteps, bool kSecond, Use use, typename Rule>
__device__ __forceinline__ void update_vectors(const LockstepParameter& p, const Rule& rule,
                                               int64_t begin, int count) {
  constexpr int kRound = kThreads * N * kSteps;
  const auto* grad = static_cast<const G*>(p.grad) + begin;
  auto* copy = static_cast<bfloat16*>(p.copy) + begin;
  float* master = p.master + begin;
  float* moment1 = p.moment1 + begin;
  float* moment2 = p.moment2 + begin;
  for (int first = threadIdx.x * N; first < count; first += kRound) {
    Raw<G, N> g[kSteps];
    Raw<float, N> w[kSteps];
    Raw<float, N> m[kSteps];
    Raw<float, N> v[kSteps];
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int at = first + step * kThreads * N;
      if (at >= count) continue;
      g[step] = load<N, use>(grad + at);
      w[step] = load<N, use>(master + at);
      if (p.moment1 != nullptr) m[step] = load<N, use>(moment1 + at);
      if constexpr (kSecond) v[step] = load<N, use>(moment2 + at);
    }
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int at = first + step * kThreads * N;
      if (at >= count) continue;
      float gs[N];
      float ws[N];
      float ms[N] = {};
      float vs[N] = {};
      unpack(g[step], gs);
      unpack(w[step], ws);
      if (p.moment1 != nullptr) unpack(m[step], ms);
      if constexpr (kSecond) unpack(v[step], vs);
#pragma unroll
      for (int i = 0; i < N; ++i) rule(gs[i], ws[i], ms[i], vs[i]);
      store<use>(master + at, pack<float>(ws));
      if (p.moment1 != nullptr) store<use>(moment1 + at, pack<float>(ms));
      if constexpr (kSecond) store<use>(moment2 + at, pack<float>(vs));
      if (p.copy != nullptr) store<use>(copy + at, pack<bfloat16>(ws));
    }
  }
}

__device__ __forceinline__ bool is_aligned(const void* pointer, int bytes) {
  return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}

template <typename G, int kThreads, int kSteps, bool kSecond, Use use, typename Rule>
__device__ __forceinline__ void update_chunk(const LockstepParameter& p, const Rule& rule,
                                             int index) {
  const int64_t begin = static_cast<int64_t>(index) * LOCKSTEP_CHUNK;
  const int64_t rest = p.count - begin;
  const int count = rest < LOCKSTEP_CHUNK ? static_cast<int>(rest) : LOCKSTEP_CHUNK;
  const bool is_fast = is_aligned(p.master, 16) && is_aligned(p.moment1, 16) &&
                       is_aligned(p.moment2, 16) && is_aligned(p.copy, 8) &&
                       is_aligned(p.grad, 4 * sizeof(G));
  const int whole = is_fast ? count / 4 * 4 : 0;
  update_vectors<G, 4, kThreads, kSteps, kSecond, use>(p, rule, begin, whole);
  update_vectors<G, 1, kThreads, 1, kSecond, use>(p, rule, begin + whole, count - whole);
}

// One block per chunk.
template <typename Arguments, bool kSecond, int kThreads, int kSteps, int kBlocks, Use use>
__global__ __launch_bounds__(kThreads, kBlocks) void update_chunks(Arguments a) {
  if (a.state->skipped != 0) return;
  for (int64_t i = blockIdx.x; i < a.list.num_chunks; i += gridDim.x) {
    const LockstepChunk chunk = a.list.chunks[i];
    const LockstepParameter p = a.list.parameters[chunk.parameter];
    const auto rule = rule_of(a, p);
    if (p.grad_type == LOCKSTEP_FLOAT32) {
      update_chunk<float, kThreads, kSteps, kSecond, use>(p, rule, chunk.index);
    } else {
      update_chunk<bfloat16, kThreads, kSteps, kSecond, use>(p, rule, chunk.index);
    }
  }
}

}  // namespace lockstep::cuda
