#pragma once

// The JSON of a safetensors file, as it stands there: of the right form, but not yet compared with
// the file.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "formats/dtype.h"
#include "formats/safetensors.h"

namespace lockstep::formats {

// The one name in a header that is no tensor.
inline constexpr std::string_view kMetadata = "__metadata__";

struct SafetensorsEntry {
  std::string name;
  DType dtype = DType::F32;
  std::vector<int64_t> shape;
  uint64_t begin = 0;  // data_offsets
  uint64_t end = 0;
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;
  std::map<std::string, std::string> metadata;
};

// `file` is for messages. Throws FormatError.
SafetensorsHeader parse_safetensors_header(const std::string& file, std::string_view json,
                                           const SafetensorsLimits& limits);

}  // namespace lockstep::formats
