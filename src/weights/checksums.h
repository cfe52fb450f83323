#pragma once

// The CRC-32 of every record of a plan, from pieces that are cut where chunks end: each piece is
// computed by the rank that read it.

#include <cstdint>
#include <span>
#include <vector>

#include "weights/plan.h"

namespace lockstep::weights {

class Checksums {
 public:
  // `plan` must outlive this.
  Checksums(const LoadPlan& plan, uint64_t chunk_bytes);

  // A chunk of the stream as it was read, or its parts in their order. Threads: one for each
  // chunk.
  void add(uint64_t position, std::span<const std::byte> bytes);

  // 0 for pieces of chunks that were not added here: the sum over ranks that added different ones
  // is what check() wants.
  std::vector<uint32_t>& pieces() { return pieces_; }

  // Throws FormatError for the first record whose CRC-32 is not the file's, naming it, a tensor in
  // it and the offset.
  void check() const;

 private:
  const LoadPlan& plan_;
  const uint64_t chunk_bytes_;
  std::vector<size_t> first_piece_;  // of each record
  std::vector<uint32_t> pieces_;
};

}  // namespace lockstep::weights
