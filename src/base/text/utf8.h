#pragma once

// UTF-8: which bytes are letters, and which are none (table 3-7 of the Unicode standard: no
// overlong forms, no surrogates, nothing beyond U+10FFFF).

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep::base {

// The letter that `text` begins with. `bytes` is 0 if there is none: `text` is empty or
// ill-formed.
struct Utf8Letter {
  char32_t point = 0;
  size_t bytes = 0;
};
Utf8Letter utf8_letter(std::string_view text);

// The code point at `at`, which moves to the one that follows. Only for text that is valid.
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

// The last code point of a text that is valid and not empty.
char32_t last_code_point(std::string_view text);

void append_utf8(std::string& text, char32_t point);

size_t count_code_points(std::string_view valid);

// Where the first ill-formed part of `text` begins; text.size() if there is none.
size_t first_invalid_utf8(std::string_view text);

inline bool is_utf8(std::string_view text) {
  return first_invalid_utf8(text) == text.size();
}

// `text` with U+FFFD in place of each maximal part that is ill-formed, as in Python's
// errors="replace".
std::string replace_invalid_utf8(std::string_view text);

}  // namespace lockstep::base
