#pragma once

// Files with a JSON object in each line.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/byte_source.h"
#include "tokenizers/json_file.h"

namespace lockstep::data {

inline constexpr uint64_t kMaxLineBytes = 64u << 20;

struct LinePlace {
  uint64_t offset_bytes = 0;
  uint32_t size_bytes = 0;  // without the line's end
  uint32_t number = 0;      // from 1 on
};

// The lines that hold more than blanks. Throws FormatError for one of more than kMaxLineBytes.
std::vector<LinePlace> find_lines(const base::ByteSource& source);

// Calls `function(line)` for each line of a text that holds more than blanks; without its end.
template <typename Function>
void for_each_line(std::string_view text, Function function) {
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    if (line.find_first_not_of(" \t\r") != std::string_view::npos) {
      function(line);
    }
  }
}

// Throws FormatError, which begins with `place`, for what is no JSON object in UTF-8.
tokenizers::Json parse_json_line(std::string_view line, const std::string& place);

}  // namespace lockstep::data
