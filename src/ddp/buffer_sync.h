#pragma once

// Rank 0's buffers on every rank.

#include <lockstep/comm/group.h>

#include "ddp/parameters.h"

namespace lockstep::ddp {

// Overwrites the tensors with those of `root`, at most `chunk_bytes` (but at least one tensor) at a
// time. Each is on the same kind of device on all ranks. Their version counters stay: a forward
// whose backward is still to come may have saved them, and the values it saw on this rank are those
// of the root anyway.
void broadcast_tensors(Group& group, const NamedTensors& tensors, int root, int64_t chunk_bytes);

// The same tensors over and over: one operation for those on the CPU and one for those on a device,
// on memory that is kept.
class BufferSync {
 public:
  BufferSync() = default;
  // Collective.
  BufferSync(Group& group, const NamedTensors& buffers);

  bool empty() const { return parts_.empty(); }
  void broadcast(Group& group, int root);
  void rebind(Group& group);

 private:
  struct Part {
    NamedTensors buffers;
    at::Tensor packed;  // bytes
  };
  std::vector<Part> parts_;
};

}  // namespace lockstep::ddp
