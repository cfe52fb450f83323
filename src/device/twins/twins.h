#pragma once

// The twins of the plug-in's kernels on the CPU: plain loops that say what a kernel must compute.
// Sums are in float64; what is stored is rounded as the kernels round it.

#include <cstdint>
#include <cstring>

#include "device/plugin_kernels.h"

namespace lockstep::device {

// An activation of a kernel, which is float32 or bfloat16.
class Elements {
 public:
  Elements(void* data, int32_t type) : data_(data), type_(type) {}
  Elements(const void* data, int32_t type) : Elements(const_cast<void*>(data), type) {}

  explicit operator bool() const { return data_ != nullptr; }
  float operator[](int64_t at) const;
  // Rounds to the nearest, ties to even; returns what is stored.
  float set(int64_t at, float value) const;

 private:
  void* data_;
  int32_t type_;
};

// What dropout makes of element `at`.
float dropped(const LockstepDropout& dropout, int64_t at, float value);

// Philox4x32-10, as Random123 has it.
struct PhiloxWords {
  uint32_t words[4];
};
PhiloxWords philox(PhiloxWords counter, uint32_t key_low, uint32_t key_high);

// A sum over rows becomes a parameter's gradient, or is added to it.
void put_sum(float& to, double sum, bool accumulate);

const char* twin_norm_forward(const LockstepNormForward* arguments, void* stream);
const char* twin_norm_backward(const LockstepNormBackward* arguments, void* stream);
const char* twin_gelu_forward(const LockstepGeluForward* arguments, void* stream);
const char* twin_gelu_backward(const LockstepGeluBackward* arguments, void* stream);
const char* twin_cross_entropy(const LockstepCrossEntropy* arguments, void* stream);
const char* twin_scale(const LockstepScale* arguments, void* stream);
const char* twin_embedding_forward(const LockstepEmbeddingForward* arguments, void* stream);
const char* twin_embedding_sort(const LockstepEmbeddingSort* arguments, void* stream);
const char* twin_embedding_backward(const LockstepEmbeddingBackward* arguments, void* stream);
const char* twin_position_backward(const LockstepPositionBackward* arguments, void* stream);
const char* twin_step_begin(const LockstepStepBegin* arguments, void* stream);
const char* twin_adamw(const LockstepAdamW* arguments, void* stream);
const char* twin_sgd(const LockstepSgd* arguments, void* stream);
const char* twin_batch_norm_forward(const LockstepBatchNormForward* arguments, void* stream);
const char* twin_batch_norm_backward(const LockstepBatchNormBackward* arguments, void* stream);

}  // namespace lockstep::device
