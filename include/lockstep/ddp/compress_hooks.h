#pragma once

// Gradients that travel in half the bytes: hooks that send a bucket in a 16-bit type.
//
//   lockstep::DistributedDataParallel ddp(model, group, {.comm_hook = lockstep::bf16_compress()});
//
// A bucket of float32 or float64 is divided by the number of ranks, rounded to the small type,
// summed in it and widened again at the end of backward; the optimizer sees float32 (float64) as
// before. The division comes first, so that the sum does not overflow where the average does not. A
// bucket that is of a 16-bit type already is averaged as it is. In a group of one nothing is sent,
// so nothing is rounded.
//
//   type      largest    digits   choose it
//   bfloat16  3.4e38     2-3      unless you know your gradients: float32's range, nothing is lost
//                                 to overflow or underflow
//   float16   65504      3-4      gradients known to lie between about 1e-5 and 1e4; a larger one
//                                 becomes infinite on every rank, one below 3e-8 becomes zero
//
// It pays where the network is the limit: ranks on several hosts. Inside one host the two
// conversions take time too: measure first. With WireType::BFloat16 (GroupOptions::wire) the ranks
// of a host sum in float32 and only what crosses the network is small: often the better choice.
//
// All ranks hold the same bits afterwards, as without a hook. Memory: one 16-bit copy of the
// buckets, from Group::allocate(), made in the first step (and again when the buckets or the group
// change).
//
// A hook belongs to one DistributedDataParallel; make another for another model.

#include <memory>

#include <lockstep/ddp/comm_hook.h>

namespace lockstep {

// Sends float16.
std::shared_ptr<CommHook> fp16_compress();

// Sends bfloat16.
std::shared_ptr<CommHook> bf16_compress();

}  // namespace lockstep
