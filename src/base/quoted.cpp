#include "base/quoted.h"

#include <algorithm>
#include <cstdint>

#include <fmt/format.h>

namespace lockstep::base {

namespace {

constexpr size_t kMaxQuoted = 120;

bool is_printable(uint32_t letter) {
  const bool is_control = letter < 0x20 || (letter >= 0x7f && letter < 0xa0);
  const bool changes_direction = letter == 0x200e || letter == 0x200f || letter == 0x061c ||
                                 (letter >= 0x2028 && letter <= 0x202e) ||
                                 (letter >= 0x2066 && letter <= 0x2069);
  return !is_control && !changes_direction && letter != 0xfeff;
}

// Of the character that `text` begins with, in UTF-8; 0 if it is none or should not be printed.
size_t printable_bytes(std::string_view text) {
  const auto first = static_cast<unsigned char>(text[0]);
  const size_t length = first < 0x80 ? 1 : first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  if (length > text.size() || (first >= 0x80 && first < 0xc2) || first > 0xf4) {
    return 0;
  }
  uint32_t letter = length == 1 ? first : first & (0x7fu >> length);
  for (size_t i = 1; i < length; ++i) {
    const auto next = static_cast<unsigned char>(text[i]);
    if ((next & 0xc0) != 0x80) {
      return 0;
    }
    letter = letter << 6 | (next & 0x3f);
  }
  const bool is_letter =
      letter >= kLeast[length] && letter <= 0x10ffff && (letter < 0xd800 || letter > 0xdfff);
  return is_letter && is_printable(letter) ? length : 0;
}

}  // namespace

std::string escaped(std::string_view name) {
  std::string text;
  while (!name.empty()) {
    const size_t length = printable_bytes(name);
    if (length == 0) {
      text += fmt::format("\\x{:02x}", static_cast<unsigned char>(name[0]));
    } else {
      text += name.substr(0, length);
    }
    name.remove_prefix(std::max<size_t>(length, 1));
  }
  return text;
}

std::string shown(std::string_view name) {
  return fmt::format("\"{}\"{}", escaped(name.substr(0, kMaxQuoted)),
                     name.size() > kMaxQuoted ? "..." : "");
}

}  // namespace lockstep::base
