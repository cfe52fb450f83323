#pragma once

// All that the plug-in takes from libtorch. The symbols are weak: without libtorch they are null,
// and the plug-in is loaded all the same. tests/cuda/plugin_test.py compares this list with what
// the file needs.

// at::cuda::CUDAGraph::CUDAGraph
asm(".weak _ZN2at4cuda9CUDAGraphC2Eb");
// at::cuda::CUDAGraph::capture_begin
asm(".weak _ZN2at4cuda9CUDAGraph13capture_beginESt4pairIyyE21cudaStreamCaptureMode");
// at::cuda::CUDAGraph::capture_end
asm(".weak _ZN2at4cuda9CUDAGraph11capture_endEv");
// at::cuda::CUDAGraph::register_generator_state
asm(".weak _ZN2at4cuda9CUDAGraph24register_generator_stateERKNS_9GeneratorE");
// at::cuda::CUDAGraph::replay
asm(".weak _ZN2at4cuda9CUDAGraph6replayEv");
// at::cuda::CUDAGraph::~CUDAGraph
asm(".weak _ZN2at4cuda9CUDAGraphD2Ev");
// at::getHostAllocator
asm(".weak _ZN2at16getHostAllocatorEN3c1010DeviceTypeE");
// c10::cuda::CUDACachingAllocator::allocator
asm(".weak _ZN3c104cuda20CUDACachingAllocator9allocatorE");
// c10::cuda::CUDAStream::stream
asm(".weak _ZNK3c104cuda10CUDAStream6streamEv");
// c10::detail::torchCheckFail
asm(".weak _ZN3c106detail14torchCheckFailEPKcS2_jS2_");
// c10::detail::torchInternalAssertFail
asm(".weak _ZN3c106detail23torchInternalAssertFailEPKcS2_jS2_S2_");

namespace lockstep::cuda {

// Its address is that of CUDAGraph::capture_begin(): null where libtorch's CUDA library is not.
extern "C" __attribute__((weak)) char libtorch_begins_captures asm(
    "_ZN2at4cuda9CUDAGraph13capture_beginESt4pairIyyE21cudaStreamCaptureMode");

inline bool is_libtorch_loaded() {
  return &libtorch_begins_captures != nullptr;
}

}  // namespace lockstep::cuda
