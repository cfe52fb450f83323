#include "tokenizers/byte_level.h"

#include <algorithm>
#include <unordered_map>

#include "base/text/utf8.h"
#include "tokenizers/unicode.h"

namespace lockstep::tokenizers {

namespace {

constexpr uint8_t kKinds = kLetter | kNumber | kSpace;

// Letter, number, white space or (0) none of them; `next` is where it ends.
uint8_t kind_at(const Unicode& unicode, const char* at, const char*& next) {
  next = at;
  return unicode.classes(base::next_code_point(next)) & kKinds;
}

// Where 's, 't, 're, 've, 'm, 'll or 'd ends; `begin` if the text begins with none of them.
const char* end_of_contraction(const char* begin, const char* end) {
  const std::string_view rest(begin, static_cast<size_t>(std::min<std::ptrdiff_t>(end - begin, 3)));
  for (const std::string_view ending : {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"}) {
    if (rest.starts_with(ending)) {
      return begin + ending.size();
    }
  }
  return begin;
}

// White space up to but without the last one, which goes with what follows; all of it at the end of
// the text, and a single one.
const char* end_of_blank(const Unicode& unicode, const char* begin, const char* end) {
  const char* last = begin;
  const char* at = begin;
  while (at != end) {
    const char* next = nullptr;
    if (kind_at(unicode, at, next) != kSpace) {
      return last == begin ? at : last;
    }
    last = at;
    at = next;
  }
  return at;
}

std::array<std::string, 256> make_byte_letters() {
  std::array<std::string, 256> letters;
  char32_t other = 256;
  for (char32_t byte = 0; byte < 256; ++byte) {
    const bool is_shown = (byte >= 33 && byte <= 126) || (byte >= 161 && byte != 173);
    base::append_utf8(letters[byte], is_shown ? byte : other++);
  }
  return letters;
}

}  // namespace

const std::array<std::string, 256>& byte_letters() {
  static const std::array<std::string, 256> letters = make_byte_letters();
  return letters;
}

std::optional<std::string> bytes_of_letters(std::string_view token) {
  static const std::unordered_map<char32_t, char> byte_of = [] {
    std::unordered_map<char32_t, char> bytes;
    for (size_t byte = 0; byte < 256; ++byte) {
      const char* at = byte_letters()[byte].data();
      bytes.emplace(base::next_code_point(at), static_cast<char>(byte));
    }
    return bytes;
  }();
  std::string bytes;
  for (const char* at = token.data(); at != token.data() + token.size();) {
    const auto found = byte_of.find(base::next_code_point(at));
    if (found == byte_of.end()) {
      return std::nullopt;
    }
    bytes += found->second;
  }
  return bytes;
}

const char* end_of_piece(const char* begin, const char* end) {
  static const Unicode& unicode = Unicode::get();
  if (*begin == '\'') {
    if (const char* after = end_of_contraction(begin, end); after != begin) {
      return after;
    }
  }
  const char* at = *begin == ' ' ? begin + 1 : begin;
  if (at == end) {
    return at;
  }
  const char* next = nullptr;
  const uint8_t kind = kind_at(unicode, at, next);
  if (kind == kSpace) {
    return end_of_blank(unicode, begin, end);
  }
  do {
    at = next;
  } while (at != end && kind_at(unicode, at, next) == kind);
  return at;
}

}  // namespace lockstep::tokenizers
