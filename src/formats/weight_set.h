#pragma once

// A model's weights: one file, or a folder with an index of shards; for the tools that look at all
// of them.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/byte_source.h"
#include "formats/weight_file.h"

namespace lockstep::formats {

struct WeightPart {
  std::string location;
  uint64_t file_bytes = 0;
  std::unique_ptr<base::ByteSource>
      source;  // of a deflated .npz its stored form, see inflate_npz.h
  WeightFile file;
};

struct WeightEntry {
  TensorInfo tensor;
  size_t part = 0;
  std::optional<size_t> tied_to;  // an entry before this one: the same bytes, type and shape
};

struct WeightSet {
  std::vector<WeightPart> parts;
  std::vector<WeightEntry> entries;    // by part, as in the file
  std::optional<uint64_t> total_size;  // what an index of shards says
};

using SourceOpener = std::function<std::unique_ptr<base::ByteSource>(const std::string& location)>;

// The file that holds the model of `folder`, an index of shards perhaps. Whole files come before
// indexes and safetensors before pickles: what transformers does. `has` says whether a file of that
// name is there. Throws UsageError if none is.
std::string find_model_file(const std::string& folder,
                            const std::function<bool(const char* name)>& has);

// `location` is a file of weights or an index of shards. A single array (.npy) gets the file's
// name. Where the metadata of safetensors says that a tensor which was left out is another one of
// the file ({"lm_head.weight": "wte.weight"}), it is an entry again, tied. Throws FormatError, also
// if shards and index disagree, and IoError.
WeightSet open_weight_set(const std::string& location, const SourceOpener& open);

}  // namespace lockstep::formats
