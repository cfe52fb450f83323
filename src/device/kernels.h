#pragma once

// The kernels of a training step, for the device that a tensor is on.

#include <vector>

#include "device/plugin_kernels.h"

namespace lockstep::device {

// The twins on the CPU. Their stream is ignored, and they need no scratch memory.
const LockstepKernels& cpu_kernels();

// Those of the plug-in; null where there is none.
const LockstepKernels* cuda_kernels();

// What the lists of an optimizer's step need beside the parameters: one chunk for every
// LOCKSTEP_CHUNK elements of each. Throws UsageError if a parameter has a negative count, or more
// elements than the chunks' indices can name.
std::vector<LockstepChunk> optimizer_chunks(const std::vector<LockstepParameter>& parameters);

}  // namespace lockstep::device
