#pragma once

// The model, made and found the same on all ranks.

#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <lockstep/comm/group.h>

namespace lockstep {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

// Throws UsageError on every rank if names, shapes, types or requires_grad differ from rank 0's;
// the first difference and the rank that has it are named.
void check_same_model(Group& group, const NamedTensors& tensors);

// Overwrites the tensors with rank 0's, at most `chunk_bytes` (but at least one tensor) at a time.
void broadcast_tensors(Group& group, const NamedTensors& tensors, int64_t chunk_bytes);

}  // namespace lockstep
