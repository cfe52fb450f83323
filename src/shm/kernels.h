#pragma once

// The arithmetic of the collectives: one pass over all ranks' elements, in one fixed order.
//
// The order of summation is a binary tree over the sources, the same for every type, size and
// instruction set:
//
//   tree(x0) = x0
//   tree(x0 .. xn-1) = tree(x0 .. xk-1) + tree(xk .. xn-1),   k = the largest power of two below n
//
// so 4 sources are (x0+x1)+(x2+x3), 3 are (x0+x1)+x2, 7 are ((x0+x1)+(x2+x3))+((x4+x5)+x6). A
// block of ranks whose size and start are multiples of a power of two is a subtree of its own,
// which is why sums per node, summed over nodes, give the same bits.
//
// float16 and bfloat16 are widened to float32, summed, divided (Average), and rounded once, to
// nearest even, as c10::Half and c10::BFloat16 round. Integers wrap around. Min and Max return NaN
// if any source is NaN. No fused multiply-add anywhere: every instruction set gives the same bits.

#include <cstddef>
#include <string>
#include <vector>

#include "shm/types.h"

namespace lockstep::shm {

// Reduces element i of all sources, for i in [0, count), and writes it to element i of every
// destination. A destination may be one of the sources (exactly, not shifted); otherwise they must
// not overlap. Alignment is the element's; 64 bytes is fastest. `divisor` is used by Average only.
struct ReduceArguments {
  const void* const* sources = nullptr;
  int num_sources = 0;  // >= 1; one source is a (converting) copy
  void* const* destinations = nullptr;
  int num_destinations = 0;
  size_t count = 0;  // elements
  int divisor = 1;
};

using ReduceKernel = void (*)(const ReduceArguments& arguments);

// The pairs that exist: from == to for every type and reduction that Reduction allows it, and for
// Sum and Average also Float16 or BFloat16 <-> Float32, by which partial sums are kept exact (from
// ranks' values to partial sums and back). Throws InternalError for any other.
struct KernelKey {
  DataType from = DataType::Float32;  // of the sources
  DataType to = DataType::Float32;    // of the destinations
  Reduction reduction = Reduction::Sum;
};

// The fastest that this processor can run; LOCKSTEP_SHM_ISA=baseline|avx2|avx512 (read once)
// chooses a lesser one.
ReduceKernel find_kernel(const KernelKey& key);

// For tests: "baseline" (SSE2 or NEON), "avx2", "avx512": those this processor can run, and the
// kernels of one.
std::vector<std::string> available_isas();
ReduceKernel find_kernel(const KernelKey& key, const std::string& isa);

// "avx512": what find_kernel(key) uses.
std::string chosen_isa();

}  // namespace lockstep::shm
