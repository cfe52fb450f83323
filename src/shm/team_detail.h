#pragma once

// What the parts of Team share. Which algorithm an operation gets: every rank must come to the same
// answer, so these look only at what ranks have agreed on.

#include "shm/team.h"

namespace lockstep::shm {

void at_state(State state);

// Bytes of `count` elements.
size_t payload_bytes(const Task& task);

// Bytes that this rank gives.
size_t own_input_bytes(const Task& task, int rank, int size);

// The inputs of ranks 2i and 2i + 1, in this order, into `sum`, which may be one of them.
void reduce_siblings(const Task& task, const void* const* pair, void* sum, size_t count);

}  // namespace lockstep::shm
