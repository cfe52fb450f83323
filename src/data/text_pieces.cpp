#include "data/text_pieces.h"

#include <algorithm>

#include <lockstep/base/error.h>

#include "data/json_lines.h"
#include "storage/storage.h"

namespace lockstep::data {

namespace {

bool is_blank(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r');
}

// Whether this is a byte of a character of several, but not its first.
bool is_inside_character(char c) {
  return (static_cast<unsigned char>(c) & 0xc0) == 0x80;
}

uint64_t json_line_start(const base::ByteSource& source, uint64_t offset) {
  for (uint64_t at = offset - 1; at < source.size(); at += kPieceBytes) {
    if (at - offset > kMaxLineBytes && at > offset) {
      throw FormatError("{}: a line around offset {} has more than {} bytes; is it JSON lines?",
                        source.name(), offset, kMaxLineBytes);
    }
    const std::string text = source.read_text(at, std::min(kPieceBytes, source.size() - at));
    if (const size_t end = text.find('\n'); end != std::string::npos) {
      return at + end + 1;
    }
  }
  return source.size();
}

uint64_t text_line_start(const base::ByteSource& source, uint64_t offset) {
  const uint64_t begin = offset - 2;
  const std::string text = source.read_text(begin, std::min(kPieceBytes, source.size() - begin));
  size_t any = std::string::npos;
  for (size_t end = text.find('\n', 1); end != std::string::npos; end = text.find('\n', end + 1)) {
    const size_t start = end + 1;
    any = std::min(any, start);
    if (start < text.size() && !is_blank(text[end - 1]) && !is_blank(text[start])) {
      return begin + start;
    }
  }
  if (any == std::string::npos) {
    any = 2;
    while (any < text.size() && is_inside_character(text[any])) {
      ++any;
    }
  }
  return begin + any;
}

// UTF-16, as editors and shells of Windows write it, says so in its first two bytes, which no text
// in UTF-8 begins with. Half of what it would be made into is the byte 0.
void check_is_utf8(const base::ByteSource& source) {
  const std::string mark = source.read_text(0, std::min<uint64_t>(2, source.size()));
  if (mark == "\xff\xfe" || mark == "\xfe\xff") {
    throw FormatError(
        "{} is in UTF-16, and texts are read as UTF-8; convert it first: iconv -f UTF-16 -t UTF-8 "
        "FILE > NEW_FILE",
        source.name());
  }
}

}  // namespace

TextInput open_text_input(const std::string& location) {
  TextInput input{.source = storage::open_source(location),
                  .is_json = location.ends_with(".jsonl") || location.ends_with(".ndjson")};
  check_is_utf8(*input.source);
  return input;
}

uint64_t piece_start(const TextInput& input, uint64_t offset) {
  if (offset == 0 || offset >= input.source->size()) {
    return std::min(offset, input.source->size());
  }
  return input.is_json ? json_line_start(*input.source, offset)
                       : text_line_start(*input.source, offset);
}

std::vector<TextPiece> share_of_pieces(const std::vector<TextInput>& inputs, ShareOfPieces share) {
  std::vector<TextPiece> all;
  for (size_t input = 0; input < inputs.size(); ++input) {
    for (uint64_t begin = 0; begin < inputs[input].source->size(); begin += kPieceBytes) {
      all.push_back({.input = input, .begin = begin, .end = begin + kPieceBytes});
    }
  }
  const size_t ranks = static_cast<size_t>(share.num_ranks);
  const size_t rank = static_cast<size_t>(share.rank);
  std::vector<TextPiece> mine(
      all.begin() + static_cast<std::ptrdiff_t>(all.size() * rank / ranks),
      all.begin() + static_cast<std::ptrdiff_t>(all.size() * (rank + 1) / ranks));
  for (TextPiece& piece : mine) {
    piece.begin = piece_start(inputs[piece.input], piece.begin);
    piece.end = piece_start(inputs[piece.input], piece.end);
  }
  return mine;
}

}  // namespace lockstep::data
