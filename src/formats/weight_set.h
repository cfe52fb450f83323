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

namespace lockstep {

struct WeightPart {
  std::string location;
  std::unique_ptr<ByteSource> source;
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

using SourceOpener = std::function<std::unique_ptr<ByteSource>(const std::string& location)>;

// The files of a folder that hold a model, first choice first: indexes of shards, then single
// files.
const std::vector<std::string>& model_file_names();

// `location` is a file of weights, an index of shards or a folder with one of model_file_names().
// A single array (.npy) gets the file's name. Where the metadata of safetensors says that a tensor
// which was left out is another one of the file ({"lm_head.weight": "wte.weight"}), it is an entry
// again, tied. Throws FormatError, also if shards and index disagree, and IoError.
WeightSet open_weight_set(const std::string& location, const SourceOpener& open);

}  // namespace lockstep
