#include "storage/s3_url.h"

#include <algorithm>

#include <fmt/format.h>

namespace lockstep::storage {

std::string percent_encoded(std::string_view text, bool is_path) {
  std::string encoded;
  for (const char c : text) {
    const bool is_plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                          (c >= '0' && c <= '9') || c == '-' || c == '.' || c == '_' || c == '~';
    if (is_plain || (is_path && c == '/')) {
      encoded.push_back(c);
    } else {
      encoded += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return encoded;
}

std::string query_text(const Query& query) {
  Query encoded;
  for (const auto& [name, value] : query) {
    encoded.emplace_back(percent_encoded(name), percent_encoded(value));
  }
  std::sort(encoded.begin(), encoded.end());
  std::string text;
  for (const auto& [name, value] : encoded) {
    text += fmt::format("{}{}={}", text.empty() ? "" : "&", name, value);
  }
  return text;
}

}  // namespace lockstep::storage
