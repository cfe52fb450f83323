#pragma once

// What a checkpoint says of itself, in manifest.json: docs/formats/checkpoint.md.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/dtype.h"

namespace lockstep::checkpoint_files {

// Elements [begin, begin + count) of a tensor, flat.
struct ManifestPiece {
  uint64_t shard = 0;         // which of the shards
  uint64_t offset_bytes = 0;  // in its file
  uint64_t begin = 0;
  uint64_t count = 0;
};

struct ManifestTensor {
  std::string name;
  formats::DType dtype = formats::DType::F32;
  std::vector<int64_t> shape;
  std::vector<ManifestPiece> pieces;  // in rising order, without a hole
};

struct ManifestShard {
  std::string file;  // beside the manifest
  uint64_t size_bytes = 0;
  std::string xxh3;  // XXH3-128 of the whole file, 32 hexadecimal digits
};

// A file of the program's that is kept with the tensors: a tokenizer, a configuration.
struct ManifestAttachment {
  std::string name;      // what the program calls it
  ManifestShard stored;  // where it lies: not a shard, but the same is known of it
};

struct Manifest {
  int64_t step = 0;
  uint64_t sequence = 0;  // rises with every commit to the folder: what is newest
  int64_t created_s = 0;  // seconds since 1970
  std::optional<double> score;
  std::map<std::string, std::string> values;
  std::vector<ManifestShard> shards;
  std::vector<ManifestTensor> tensors;
  std::vector<ManifestAttachment> attachments = {};  // none in version 1

  uint64_t shard_bytes() const;  // attachments counted too

  // All files beside the manifest: the shards, then the attachments.
  size_t num_files() const { return shards.size() + attachments.size(); }
  const ManifestShard& file(size_t which) const;
};

// What a program may attach: no more, lest a manifest make a reader fill its memory.
inline constexpr uint64_t kMaxAttachmentBytes = 256u << 20;
inline constexpr size_t kMaxAttachments = 100;

// Letters, digits, "-", "_" and ".", with no dot in front; at most 100 of them.
bool is_attachment_name(std::string_view name);

inline constexpr std::string_view kManifestFile = "manifest.json";

// Throws UsageError for a name or a value that is not UTF-8.
std::string manifest_text(const Manifest& manifest);

// Checks everything: the checksum holds, every tensor is covered by its pieces and every piece lies
// in its shard. `name` is for messages. Throws FormatError.
Manifest parse_manifest(const std::string& name, std::string_view text);

}  // namespace lockstep::checkpoint_files
