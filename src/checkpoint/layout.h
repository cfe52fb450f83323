#pragma once

// Which bytes of the state a rank writes, and where they lie in its shard.
//
// All tensors, one after another, are cut into as many equal shares as there are ranks. In a shard
// the whole pages of memory come first, so that they go to the disk from where they lie; what is
// left of large tensors at both ends, and small tensors, follow, and are copied at once.

#include <cstdint>
#include <string>
#include <vector>

#include <lockstep/weights/save.h>

#include "checkpoint_files/manifest.h"

namespace lockstep::checkpoint {

inline constexpr uint64_t kSmallBytes = 64u << 10;  // below it a tensor is copied at once

// A tensor as it is saved: dense, contiguous.
struct SavedTensor {
  std::string name;
  formats::DType dtype = formats::DType::F32;
  std::vector<int64_t> shape;
  at::Tensor tensor;  // keeps the memory alive
  const std::byte* data = nullptr;
  uint64_t bytes = 0;
};

// Throws UsageError for what cannot be saved: no dense CPU tensor, a type without a name, a name
// that is empty or stands there twice.
std::vector<SavedTensor> saved_tensors(const std::vector<NamedTensor>& tensors);

// Equal for lists with the same names, types and shapes.
uint64_t fingerprint_of(const std::vector<SavedTensor>& tensors);

struct Share {
  struct Piece {
    size_t tensor = 0;
    checkpoint_files::ManifestPiece place;  // without the shard
  };
  struct Memory {
    const std::byte* data = nullptr;
    uint64_t bytes = 0;
  };
  std::string head;             // of the file
  std::vector<Memory> bodies;   // whole pages, after it
  std::vector<std::byte> rest;  // after these
  std::vector<Piece> pieces;    // by tensor, then element
  uint64_t file_bytes = 0;
};

struct ShareOptions {
  int rank = 0;
  int size = 1;
};

// Copies what is small.
Share make_share(const std::vector<SavedTensor>& tensors, ShareOptions options);

}  // namespace lockstep::checkpoint
