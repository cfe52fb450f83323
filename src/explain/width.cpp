#include "explain/width.h"

#include <algorithm>
#include <cstdint>

namespace lockstep::explain {
namespace {

struct Range {
  uint32_t first;
  uint32_t last;
};

// From Unicode's EastAsianWidth.txt (W and F), merged where only unassigned code points lie
// between.
constexpr Range kWide[] = {
    {0x1100, 0x115F},    // Hangul Jamo, leading consonants
    {0x231A, 0x231B},    // watch, hourglass
    {0x2E80, 0x303E},    // CJK radicals and punctuation
    {0x3041, 0xA4CF},    // kana, Hangul compatibility Jamo, CJK ideographs, Yi
    {0xA960, 0xA97C},    // Hangul Jamo Extended-A
    {0xAC00, 0xD7A3},    // Hangul syllables
    {0xF900, 0xFAFF},    // CJK compatibility ideographs
    {0xFE30, 0xFE6F},    // CJK compatibility forms
    {0xFF01, 0xFF60},    // full-width forms
    {0xFFE0, 0xFFE6},    // full-width signs
    {0x1F300, 0x1F64F},  // pictographs, faces
    {0x1F680, 0x1F6FF},  // transport
    {0x1F900, 0x1F9FF},  // more pictographs
    {0x20000, 0x3FFFD},  // further CJK ideographs
};

constexpr Range kZeroWidth[] = {
    {0x0300, 0x036F},  // combining accents
    {0x1160, 0x11FF},  // Hangul Jamo, vowels and final consonants: they join the leading one
    {0x200B, 0x200F},  // zero-width space and marks
    {0x20D0, 0x20FF},  // combining marks for symbols
    {0xFE00, 0xFE0F},  // variation selectors
};

template <size_t size>
bool contains(const Range (&ranges)[size], uint32_t code) {
  return std::any_of(std::begin(ranges), std::end(ranges),
                     [=](const Range& range) { return range.first <= code && code <= range.last; });
}

size_t width_of(uint32_t code) {
  if (contains(kZeroWidth, code)) {
    return 0;
  }
  return contains(kWide, code) ? 2 : 1;
}

// Bytes of the character that `lead` begins; 0 if no character begins so.
size_t sequence_length(unsigned char lead) {
  if (lead < 0x80) {
    return 1;
  }
  if (lead >= 0xC2 && lead <= 0xDF) {
    return 2;
  }
  if (lead >= 0xE0 && lead <= 0xEF) {
    return 3;
  }
  return lead >= 0xF0 && lead <= 0xF4 ? 4 : 0;
}

struct Decoded {
  uint32_t code = '?';  // stands for a byte that is not UTF-8
  size_t bytes = 1;
};

Decoded decode(std::string_view rest) {
  const auto lead = static_cast<unsigned char>(rest.front());
  const size_t length = sequence_length(lead);
  if (length == 0 || length > rest.size()) {
    return {};
  }
  if (length == 1) {
    return {.code = lead, .bytes = 1};
  }
  uint32_t code = lead & (0x7Fu >> length);
  for (size_t i = 1; i < length; ++i) {
    const auto next = static_cast<unsigned char>(rest[i]);
    if ((next & 0xC0) != 0x80) {
      return {};
    }
    code = code << 6 | (next & 0x3F);
  }
  return {.code = code, .bytes = length};
}

}  // namespace

size_t display_width(std::string_view utf8) {
  size_t width = 0;
  while (!utf8.empty()) {
    const Decoded character = decode(utf8);
    width += width_of(character.code);
    utf8.remove_prefix(character.bytes);
  }
  return width;
}

std::vector<std::string> wrap(std::string_view utf8, size_t columns) {
  std::vector<std::string> lines;
  size_t used = 0;
  while (!utf8.empty()) {
    const std::string_view word = utf8.substr(0, utf8.find(' '));
    utf8.remove_prefix(std::min(utf8.size(), word.size() + 1));
    if (word.empty()) {
      continue;
    }
    const size_t width = display_width(word);
    if (lines.empty() || used + 1 + width > columns) {
      lines.emplace_back(word);
      used = width;
    } else {
      lines.back().append(" ").append(word);
      used += 1 + width;
    }
  }
  return lines;
}

}  // namespace lockstep::explain
