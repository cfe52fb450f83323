#pragma once

// To be called before all ranks throw what one of them has told the others.

#include <lockstep/base/error.h>
#include <lockstep/comm/group.h>

namespace lockstep::comm {

// Collective: returns once every rank has heard what came before. The rank that throws first
// leaves by an exception, and its group often goes with it: a rank that is still being told would
// learn that the other one left, and not why.
inline void wait_until_all_heard(Group& group) {
  try {
    group.barrier();
  } catch (const CommError&) {
    // Somebody has left the barrier already, so that all had come to it.
  }
}

}  // namespace lockstep::comm
