#pragma once

// UTF-8, byte by byte.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep::tokenizers {

constexpr char32_t kReplacement = 0xFFFD;

// The code point at `at`, which moves behind it. Only for text that is valid.
inline char32_t next_code_point(const char*& at) {
  const auto byte = [](char c) { return static_cast<unsigned char>(c); };
  const char32_t lead = byte(*at++);
  if (lead < 0x80) {
    return lead;
  }
  const char32_t second = byte(*at++) & 0x3Fu;
  if (lead < 0xE0) {
    return (lead & 0x1Fu) << 6 | second;
  }
  const char32_t third = byte(*at++) & 0x3Fu;
  if (lead < 0xF0) {
    return (lead & 0x0Fu) << 12 | second << 6 | third;
  }
  return (lead & 0x07u) << 18 | second << 12 | third << 6 | (byte(*at++) & 0x3Fu);
}

// The code point that ends at `end`, in valid text.
char32_t last_code_point(std::string_view text);

void append_utf8(std::string& text, char32_t point);

size_t count_code_points(std::string_view valid);

// Where the first ill-formed part of `text` begins; text.size() if there is none.
size_t first_invalid_utf8(std::string_view text);

// `text` with U+FFFD for each maximal part that is ill-formed, as Python's errors="replace" puts
// it.
std::string replace_invalid_utf8(std::string_view text);

}  // namespace lockstep::tokenizers
