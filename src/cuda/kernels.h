#pragma once

// The plug-in's kernels as its table has them; device/plugin_kernels.h says what each does.

#include "device/plugin_kernels.h"

namespace lockstep::cuda {

const char* norm_forward(const LockstepNormForward* arguments, void* stream);
const char* norm_backward(const LockstepNormBackward* arguments, void* stream);
const char* gelu_forward(const LockstepGeluForward* arguments, void* stream);
const char* gelu_backward(const LockstepGeluBackward* arguments, void* stream);
const char* cross_entropy(const LockstepCrossEntropy* arguments, void* stream);
const char* scale(const LockstepScale* arguments, void* stream);
const char* embedding_forward(const LockstepEmbeddingForward* arguments, void* stream);
const char* embedding_sort(const LockstepEmbeddingSort* arguments, void* stream);
const char* embedding_backward(const LockstepEmbeddingBackward* arguments, void* stream);
const char* position_backward(const LockstepPositionBackward* arguments, void* stream);
const char* step_begin(const LockstepStepBegin* arguments, void* stream);
const char* adamw(const LockstepAdamW* arguments, void* stream);
const char* sgd(const LockstepSgd* arguments, void* stream);
const char* batch_norm_forward(const LockstepBatchNormForward* arguments, void* stream);
const char* batch_norm_backward(const LockstepBatchNormBackward* arguments, void* stream);

size_t norm_scratch_bytes(int64_t rows, int64_t columns);
size_t column_scratch_bytes(int64_t rows, int64_t columns);
size_t embedding_sort_scratch_bytes(int64_t rows);
size_t embedding_scratch_bytes(int64_t rows, int64_t columns);

}  // namespace lockstep::cuda
