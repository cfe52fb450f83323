#pragma once

// A lockstep Group for code that was written for c10d (PyTorch's distributed layer), say
// c10d::Reducer.
//
//   auto process_group = lockstep::make_process_group(group);
//   c10d::Reducer reducer(parameters, buckets, process_group, ...);
//
// Needs c10d's headers, so <lockstep/lockstep.h> does not include it.

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <lockstep/comm/group.h>

namespace lockstep {

// The group as a c10d::Backend: broadcast, allreduce, allgather (both forms), reduce_scatter (both
// forms), alltoall_base, send, recv and barrier, each on one CPU tensor per call, as DDP and most
// programs use them. What the Group refuses is refused here: PREMUL_SUM, BXOR and sparse tensors,
// for example. An operation that fails has the Group's error in its Work and its Future.
c10::intrusive_ptr<c10d::Backend> make_c10d_backend(Group group);

// The same as a ProcessGroup, for the CPU.
c10::intrusive_ptr<c10d::ProcessGroup> make_process_group(Group group);

}  // namespace lockstep
