#pragma once

// A lockstep Group for code that was written for c10d, PyTorch's distributed layer: c10d::Reducer,
// for example.
//
// Example:
//   auto process_group = lockstep::make_process_group(group);
//   std::vector<at::Tensor> gradients{torch::ones({3})};
//   process_group->allreduce(gradients)->wait();  // the sum over all ranks
//
// This header needs c10d's own headers, so <lockstep/lockstep.h> does not include it.

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <lockstep/comm/group.h>

namespace lockstep {

// Returns the group as a c10d::Backend. It has broadcast, allreduce, allgather (both forms),
// reduce_scatter (both forms), alltoall_base, send, recv and barrier. Each takes one tensor per
// call, of the CPU or of CUDA, as DDP and most programs do. What the Group refuses is refused here
// too, for example PREMUL_SUM, BXOR and sparse tensors. The backend holds a copy of the group's
// handle.
//
// Wrong arguments are a UsageError at the call. An operation that fails later stores the Group's
// error in its c10d::Work and in its Future; Work::wait() throws it.
c10::intrusive_ptr<c10d::Backend> make_c10d_backend(Group group);

// Returns the same as a c10d::ProcessGroup, with the backend registered for the CPU and for CUDA.
c10::intrusive_ptr<c10d::ProcessGroup> make_process_group(Group group);

}  // namespace lockstep
