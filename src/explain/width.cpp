#include "explain/width.h"

#include <algorithm>
#include <cstdint>

#include "base/text/utf8.h"

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

}  // namespace

size_t display_width(std::string_view utf8) {
  size_t width = 0;
  while (!utf8.empty()) {
    const base::Utf8Letter letter = base::utf8_letter(utf8);
    width += letter.bytes == 0 ? 1 : width_of(letter.point);
    utf8.remove_prefix(std::max<size_t>(letter.bytes, 1));
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
