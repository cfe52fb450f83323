#pragma once

// `model.safetensors.index.json`, `pytorch_model.bin.index.json`: which file of a folder holds
// which tensor.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/byte_source.h"
#include "formats/tensor_info.h"

namespace lockstep::formats {

struct ShardedIndex {
  std::map<std::string, std::string> shard_of;  // tensor -> file, both without a folder
  std::vector<std::string> shards;              // sorted; the names follow no pattern
  std::optional<uint64_t> total_size;  // what the writer said; tied tensors make it inexact
};

// Throws FormatError for what is no such index, for a key that stands there twice and for a file
// name that leads out of the folder.
ShardedIndex read_sharded_index(const base::ByteSource& source);

// Compares the index with what one of its shards holds: every tensor that it puts there, and none
// that it puts elsewhere. Throws FormatError, naming the tensor and both files.
void check_shard(const ShardedIndex& index, const std::string& shard,
                 const std::vector<TensorInfo>& tensors);

}  // namespace lockstep::formats
