#pragma once

// Hooks that send a bucket of gradients in a 16-bit type, and so in half the bytes.
//
// Example:
//   lockstep::DistributedDataParallel ddp(model, group, {.comm_hook = lockstep::bf16_compress()});
//
// A bucket of float32 or float64 is divided by the number of ranks, rounded to the small type,
// summed in it and widened again at the end of backward, so the optimizer sees float32 (or float64)
// as before. The division comes first, so that the sum does not overflow where the average does
// not. A bucket that already has a 16-bit type is averaged as it is. In a group of one nothing is
// sent, and so nothing is rounded.
//
//   type      largest  digits  when to choose it
//   bfloat16  3.4e38   2-3     unless you know your gradients: it has float32's range, so nothing
//                              is lost to overflow or underflow
//   float16   65504    3-4     for gradients known to lie between about 1e-5 and 1e4; a larger one
//                              becomes infinite on every rank, and one below 3e-8 becomes zero
//
// A hook pays where the network is the limit, that is for ranks on several hosts. Inside one host
// the two conversions take time too, so measure first. GroupOptions::wire = WireType::BFloat16 is
// often the better choice: the ranks of a host then sum in float32, and only what crosses the
// network is small.
//
// All ranks hold the same bits afterwards, as they do without a hook. A hook keeps one 16-bit copy
// of the buckets, in memory of Group::allocate(). It is allocated in the first step, and again when
// the buckets or the group change; what allocate() throws then comes out of backward().
//
// A hook belongs to one DistributedDataParallel. Make another for another model.

#include <memory>

#include <lockstep/ddp/comm_hook.h>

namespace lockstep {

// Sends float16.
std::shared_ptr<CommHook> fp16_compress();

// Sends bfloat16.
std::shared_ptr<CommHook> bf16_compress();

}  // namespace lockstep
