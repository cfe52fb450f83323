#pragma once

// Rank 0's buffers on every rank.

#include <lockstep/comm/group.h>

#include "ddp/parameters.h"

namespace lockstep::ddp {

// Overwrites the tensors with those of `root`, at most `chunk_bytes` (but at least one tensor) at a
// time. Their version counters stay: a forward whose backward is still to come may have saved them,
// and the values it saw on this rank are those of the root anyway.
void broadcast_tensors(Group& group, const NamedTensors& tensors, int root, int64_t chunk_bytes);

// The same tensors over and over: one operation, on memory that is kept.
class BufferSync {
 public:
  BufferSync() = default;
  // Collective.
  BufferSync(Group& group, NamedTensors buffers);

  bool empty() const { return buffers_.empty(); }
  void broadcast(Group& group, int root);
  void rebind(Group& group);

 private:
  NamedTensors buffers_;
  at::Tensor packed_;  // bytes, of the group
};

}  // namespace lockstep::ddp
