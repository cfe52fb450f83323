#pragma once

// Which bytes of which files are read, as one stream: the ranges one after another, each begun at
// a multiple of kPageBytes in its file and in the stream. Equal on every rank that asks for the
// same tensors.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "weights/catalog.h"

namespace lockstep::weights {

inline constexpr uint64_t kPageBytes = 4096;  // what direct reads must be aligned to

struct ReadRange {
  size_t file = 0;
  uint64_t begin = 0;     // in the file
  uint64_t end = 0;       // at most the file's size
  uint64_t position = 0;  // of `begin`, in the stream
};

struct PlannedTensor {
  size_t target = 0;
  const CatalogTensor* tensor = nullptr;
  uint64_t position = 0;  // of its first byte, in the stream
};

// A record with a checksum that is read whole.
struct PlannedRecord {
  const CatalogFile* file = nullptr;
  const formats::WeightChecksum* sum = nullptr;
  const CatalogTensor* tensor = nullptr;  // the first one in it that was asked for
  uint64_t position = 0;
};

struct LoadPlan {
  std::vector<ReadRange> ranges;
  std::vector<PlannedTensor> tensors;  // those with bytes, by position
  std::vector<PlannedRecord> records;  // by position
  uint64_t stream_bytes = 0;
  uint64_t read_bytes = 0;     // what the ranges hold; the stream adds what rounds them up
  bool is_verifiable = false;  // every tensor lies in one of the records

  // Equal for plans that read the same bytes and compare the same records.
  uint64_t fingerprint() const;
};

// Throws UsageError for a name that is not in the catalog, a tensor that is not dense or neither on
// the CPU nor on a GPU, and a shape that is not the file's; each with the file, the tensor and both
// shapes.
LoadPlan make_plan(const WeightCatalog& catalog, std::span<const WeightTarget> targets);

// A part of a file, and of the stream.
struct ReadPart {
  size_t file = 0;
  uint64_t offset = 0;  // in the file
  uint64_t bytes = 0;
  uint64_t at = 0;  // from the position asked for
};

// What is to be read for [position, position + bytes) of the stream.
std::vector<ReadPart> parts_of(const LoadPlan& plan, uint64_t position, uint64_t bytes);

}  // namespace lockstep::weights
