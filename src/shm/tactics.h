#pragma once

// Which algorithm an operation gets, by its size. What is fast depends on whether every rank has a
// core of its own. If so, all of them work at once and synchronising costs about a microsecond; if
// ranks take turns on a core, it costs a turn of each, and one rank had better do more. The
// figures are in docs/decisions/0009-siblings-join.md and 0010-a-core-for-every-rank.md.

#include <cstddef>

namespace lockstep::shm {

// The same on every rank of a team: it depends only on what they have agreed on. The bytes are
// those of an AllReduce; each limit is the last size that it holds for.
struct Tactics {
  bool has_own_cores = false;  // a core for every rank
  size_t alone_bytes = 0;      // of all ranks: the last rank to arrive reduces for all
  size_t flat_bytes = 0;       // of a rank: every rank reduces everything for itself
  size_t slice_bytes = 0;      // of all ranks: every rank reduces one slice for all
  size_t small_bytes = 0;      // of a rank: ordinary memory goes through the slots whole
  // How the rest of ordinary memory goes, chunk by chunk.
  size_t chunk_bytes = 0;     // of a rank; at most kChunkBytes
  bool fetches_sums = false;  // a sum lies at the rank that made it, instead of going back into the
                              // slots of all: dearer for few ranks, cheaper for many
  // How the rest of shared memory is dealt out, block by block.
  size_t blocks_per_rank = 0;  // enough to even out late ranks
  size_t max_block_bytes = 0;

  static Tactics for_ranks(int num_ranks, int num_cores);
};

}  // namespace lockstep::shm
