#include "base/text/utf8.h"

#include <algorithm>
#include <cstring>

namespace lockstep::base {

namespace {

constexpr char32_t kReplacement = 0xFFFD;

// What begins with a byte above 0x7F: how many bytes are right, and whether they are a whole code
// point. Only the second byte has limits of its own.
struct Utf8Part {
  size_t bytes = 1;
  bool is_whole = false;
};

Utf8Part part_at(const unsigned char* at, size_t left) {
  const unsigned lead = at[0];
  const size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  if (lead < 0xC2 || lead > 0xF4) {
    return {};
  }
  const unsigned least = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const unsigned most = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  if (left < 2 || at[1] < least || at[1] > most) {
    return {};
  }
  for (size_t i = 2; i < length; ++i) {
    if (i >= left || at[i] < 0x80 || at[i] > 0xBF) {
      return {.bytes = i};
    }
  }
  return {.bytes = length, .is_whole = true};
}

}  // namespace

Utf8Letter utf8_letter(std::string_view text) {
  if (text.empty()) {
    return {};
  }
  const auto* bytes = reinterpret_cast<const unsigned char*>(text.data());
  if (bytes[0] < 0x80) {
    return {.point = bytes[0], .bytes = 1};
  }
  const Utf8Part part = part_at(bytes, text.size());
  const char* at = text.data();
  return part.is_whole ? Utf8Letter{.point = next_code_point(at), .bytes = part.bytes}
                       : Utf8Letter{};
}

char32_t last_code_point(std::string_view text) {
  size_t begin = text.size() - 1;
  while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xC0u) == 0x80u) {
    --begin;
  }
  const char* at = text.data() + begin;
  return next_code_point(at);
}

void append_utf8(std::string& text, char32_t point) {
  const auto add = [&](char32_t byte) { text += static_cast<char>(byte); };
  if (point < 0x80) {
    add(point);
  } else if (point < 0x800) {
    add(0xC0u | point >> 6);
    add(0x80u | (point & 0x3Fu));
  } else if (point < 0x10000) {
    add(0xE0u | point >> 12);
    add(0x80u | (point >> 6 & 0x3Fu));
    add(0x80u | (point & 0x3Fu));
  } else {
    add(0xF0u | point >> 18);
    add(0x80u | (point >> 12 & 0x3Fu));
    add(0x80u | (point >> 6 & 0x3Fu));
    add(0x80u | (point & 0x3Fu));
  }
}

size_t count_code_points(std::string_view valid) {
  return static_cast<size_t>(std::count_if(valid.begin(), valid.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0u) != 0x80u;
  }));
}

size_t first_invalid_utf8(std::string_view text) {
  constexpr uint64_t kHighBits = 0x8080808080808080u;
  const auto* bytes = reinterpret_cast<const unsigned char*>(text.data());
  size_t at = 0;
  while (at < text.size()) {
    uint64_t eight = 0;
    if (text.size() - at >= sizeof(eight)) {
      std::memcpy(&eight, bytes + at, sizeof(eight));
      if ((eight & kHighBits) == 0) {
        at += sizeof(eight);
        continue;
      }
    }
    if (bytes[at] < 0x80) {
      ++at;
      continue;
    }
    const Utf8Part part = part_at(bytes + at, text.size() - at);
    if (!part.is_whole) {
      return at;
    }
    at += part.bytes;
  }
  return at;
}

std::string replace_invalid_utf8(std::string_view text) {
  std::string valid;
  while (true) {
    const size_t length = first_invalid_utf8(text);
    valid += text.substr(0, length);
    text.remove_prefix(length);
    if (text.empty()) {
      return valid;
    }
    append_utf8(valid, kReplacement);
    text.remove_prefix(
        part_at(reinterpret_cast<const unsigned char*>(text.data()), text.size()).bytes);
  }
}

}  // namespace lockstep::base
