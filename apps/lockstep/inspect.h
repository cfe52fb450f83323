#pragma once

// What `lockstep inspect` prints; inspect.cpp reads the flags.

#include <memory>
#include <string>
#include <vector>

#include "base/byte_source.h"
#include "formats/convert.h"
#include "formats/weight_diff.h"
#include "formats/weight_set.h"

namespace lockstep::app {

inline constexpr size_t kMaxValueWidth = 200;  // of metadata, in tables

// The one place that opens what is inspected.
std::unique_ptr<base::ByteSource> open_location(const std::string& location);

// What --verify found out about one file; a file that is damaged is an error instead.
struct Verified {
  std::string file;
  size_t num_records = 0;    // whose CRC-32 was compared; 0: the file has none
  bool has_sidecar = false;  // whose SHA-256 was compared
};

// Compares what `source` has: `num_records` is 0 for formats without checksums.
Verified verify_with_sidecar(const base::ByteSource& source, const std::string& location,
                             size_t num_records);
std::vector<Verified> verify_weights(const formats::WeightSet& set);
std::string verified_text(const std::vector<Verified>& verified);

std::string weights_table(const std::string& location, const formats::WeightSet& set);
std::string weights_tree(const std::string& location, const formats::WeightSet& set);
// `verified` is empty without --verify.
std::string weights_json(const std::string& location, const formats::WeightSet& set,
                         const std::vector<Verified>& verified);

// Whether a file that is none of weights may be one of tokens: by llm.c's magic or its name.
bool may_be_tokens(const base::ByteSource& source);
struct TokenOptions {
  bool as_json = false;
  bool verify = false;  // compare the sidecar
};
int inspect_tokens(const base::ByteSource& source, const TokenOptions& options);

// A checkpoint, a folder of them, or the `latest` or `best` beside one.
bool is_checkpoint(const std::string& location);
struct CheckpointFlags {
  bool as_json = false;
  bool verify = false;  // read all of it; 1 is returned if any is damaged
};
int inspect_checkpoint(const std::string& location, const CheckpointFlags& flags);

std::string diff_text(const std::string& a, const std::string& b, const formats::WeightDiff& diff);
std::string diff_json(const formats::WeightDiff& diff);

// Columns as wide as their widest cell; the last is not padded.
std::string aligned(const std::vector<std::vector<std::string>>& rows);

// "1.50 GB": powers of ten, three digits.
std::string size_text(uint64_t bytes);

}  // namespace lockstep::app
