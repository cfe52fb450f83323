#pragma once

// Which bytes of the state a rank writes, and where they lie in its shard.
//
// All tensors, one after another, are cut into as many equal shares as there are ranks. In a shard
// the whole pages of memory come first, so that they go to the disk from where they lie; what is
// left of large tensors at both ends, and small tensors, follow, and are copied at once. What lies
// in a GPU's memory is dealt out alike: its whole pages follow those of the host, and its small
// parts are copied at once on the GPU, where the work that is queued there cannot change them.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <lockstep/weights/save.h>

#include "checkpoint_files/manifest.h"

namespace lockstep::checkpoint {

inline constexpr uint64_t kSmallBytes = 64u << 10;  // below it a tensor is copied at once

// A tensor as it is saved: dense, and contiguous if it is the host's.
struct SavedTensor {
  std::string name;
  formats::DType dtype = formats::DType::F32;
  std::vector<int64_t> shape;
  at::Tensor tensor;                // keeps the memory alive
  const std::byte* data = nullptr;  // null: only device::Copies read it
  uint64_t bytes = 0;
};

// Throws UsageError for what cannot be saved: no dense tensor of the CPU or a GPU, a type without a
// name, a name that is empty or stands there twice, tensors of two GPUs.
std::vector<SavedTensor> saved_tensors(const std::vector<NamedTensor>& tensors);

// Equal for lists with the same names, types and shapes.
uint64_t fingerprint_of(const std::vector<SavedTensor>& tensors);

// The device that a tensor lies on which only device::Copies read; nothing if there is none.
std::optional<at::Device> device_of(const std::vector<SavedTensor>& tensors);

struct Share {
  struct Piece {
    size_t tensor = 0;
    checkpoint_files::ManifestPiece place;  // without the shard
  };
  struct Memory {
    const std::byte* data = nullptr;
    uint64_t bytes = 0;
  };
  // Bytes of `rest` that come from the device.
  struct Gap {
    uint64_t at = 0;
    uint64_t bytes = 0;
  };
  std::string head;                       // of the file
  std::vector<Memory> bodies;             // whole pages, after it
  std::vector<at::Tensor> device_bodies;  // after these: bytes of a device, in whole pages
  std::vector<std::byte> rest;            // after these
  std::vector<Gap> gaps;                  // in the rest
  at::Tensor device_rest;                 // what belongs into the gaps, one after another
  std::vector<Piece> pieces;              // by tensor, then element
  uint64_t file_bytes = 0;
};

struct ShareOptions {
  int rank = 0;
  int size = 1;
};

// Copies what is small, and what of a device's tensors is not contiguous: there by operations that
// are queued on the current stream.
Share make_share(const std::vector<SavedTensor>& tensors, ShareOptions options);

}  // namespace lockstep::checkpoint
