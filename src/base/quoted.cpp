#include "base/quoted.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/text/utf8.h"

namespace lockstep::base {

namespace {

constexpr size_t kMaxQuoted = 120;

bool is_printable(char32_t letter) {
  const bool is_control = letter < 0x20 || (letter >= 0x7f && letter < 0xa0);
  const bool changes_direction = letter == 0x200e || letter == 0x200f || letter == 0x061c ||
                                 (letter >= 0x2028 && letter <= 0x202e) ||
                                 (letter >= 0x2066 && letter <= 0x2069);
  return !is_control && !changes_direction && letter != 0xfeff;
}

// How many bytes the letter has that `text` begins with; 0 if it is none or should not be printed.
size_t printable_bytes(std::string_view text) {
  const Utf8Letter letter = utf8_letter(text);
  return is_printable(letter.point) ? letter.bytes : 0;
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
