#pragma once

/* What lockstep asks of its CUDA plug-in: a table of plain functions, the only thing that the two
 * share. The plug-in links no other part of lockstep; C types only, so that the two may be built
 * by different compilers. */

#include <stddef.h>
#include <stdint.h>

#include "device/plugin_kernels.h"

/* Raised with every change of the table. */
#define LOCKSTEP_CUDA_PLUGIN_VERSION 4
#define LOCKSTEP_CUDA_PLUGIN_ENTRY "lockstep_cuda_plugin"

extern "C" {

/* Work of the current device's current stream that is recorded and queued again as a whole, by
 * at::cuda::CUDAGraph, whose memory is its own. The stream is none of CUDA's default ones. Errors
 * are libtorch's texts. The rest of the plug-in needs no libtorch; these functions refuse where
 * libtorch's CUDA library is not loaded. */
typedef struct LockstepGraphs {
  /* Recording begins; what other threads ask of CUDA meanwhile does not disturb it. Numbers are
   * drawn from `generators`, of the type c10::GeneratorImpl: replay() takes their seeds of then. */
  const char* (*begin)(void** graph, void* const* generators, int32_t num);
  const char* (*end)(void* graph);
  const char* (*replay)(void* graph);
  /* At any time: a recording that has begun and not ended is given up. Null is nothing. */
  void (*release)(void* graph);
} LockstepGraphs;

/* Every function returns null, or a text in static or thread-local memory that says what failed. */
typedef struct LockstepCudaPlugin {
  int32_t version;

  /* Memory that exists already, such as a shared segment, becomes pinned: copies from and to it are
   * asynchronous and run at full speed. */
  const char* (*pin)(void* data, size_t bytes);
  const char* (*unpin)(void* data);

  const char* (*memory)(int32_t device, size_t* free_bytes, size_t* total_bytes);

  /* Sum of squares of `num` arrays on the current device, on `stream` (a cudaStream_t), in a fixed
   * order: out[0] = the sum over all of them, as float64. An element that is not finite makes it
   * not finite. `data` and `counts` are arrays on the host, read before the call returns; `scratch`
   * has lockstep_cuda_squares_scratch() bytes on the device. */
  const char* (*sum_of_squares)(const void* const* data, const int64_t* counts,
                                const int32_t* types, int32_t num, double* out, void* scratch,
                                void* stream);
  size_t squares_scratch_bytes;

  const LockstepKernels* kernels; /* of a training step */
  const LockstepGraphs* graphs;
} LockstepCudaPlugin;

typedef const LockstepCudaPlugin* (*LockstepCudaPluginEntry)(void);
}
