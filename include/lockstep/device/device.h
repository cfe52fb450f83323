#pragma once

// The device that a rank computes on.
//
// Example:
//   auto group = lockstep::init();
//   const at::Device device = lockstep::local_device();  // cuda:LOCAL_RANK, or the CPU
//   torch::nn::Linear model(8, 1);
//   model->to(device);
//   lockstep::DistributedDataParallel ddp(model, group);
//
// One build serves machines with and without a GPU. Where a driver is installed, libtorch's CUDA
// library is loaded by init(), or when somebody first asks for CUDA, be it by a function below or
// by torch::cuda::is_available() or torch::manual_seed(); where none is, nothing is loaded and
// every answer is the CPU. Set LOCKSTEP_DEVICE=cpu, before either happens, to leave the GPU alone:
// the program then starts as fast as on a machine without one.
//
// Threads: every function may be called concurrently.

#include <string>

#include <c10/core/Device.h>

namespace lockstep {

// Whether tensors can be on a GPU in this process. The first call may take half a second.
bool cuda_is_available();

// Why they cannot, with the way out: "no NVIDIA driver: libcuda.so.1 was not found". Empty if they
// can.
std::string cuda_problem();

// The GPU of this rank: the one that `lockstep run` dealt it (LOCKSTEP_GPU_INDEX), or else number
// LOCAL_RANK of those that it sees; the CPU if it sees none, which LOCKSTEP_DEVICE=cuda forbids.
//
// Throws UsageError if LOCKSTEP_DEVICE is not auto, cpu or cuda; if it is cuda and there is no GPU;
// or if the host has more ranks than GPUs, unless they were started with `lockstep run --share-gpu`
// (LOCKSTEP_SHARE_GPU=1): then they take turns.
at::Device local_device();

}  // namespace lockstep
