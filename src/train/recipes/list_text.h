#pragma once

// "a.bin, b.bin" -> {"a.bin", "b.bin"}: a list in one setting.

#include <algorithm>
#include <string>
#include <vector>

namespace lockstep::train {

inline std::vector<std::string> split_list(const std::string& text) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    std::string part = text.substr(begin, end - begin);
    part.erase(0, part.find_first_not_of(' '));
    part.erase(part.find_last_not_of(' ') + 1);
    if (!part.empty()) {
      parts.push_back(std::move(part));
    }
    begin = end + 1;
  }
  return parts;
}

}  // namespace lockstep::train
