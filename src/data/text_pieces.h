#pragma once

// Cuts inputs into pieces that can be made into tokens one by one, on any thread.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/byte_source.h"

namespace lockstep::data {

inline constexpr uint64_t kPieceBytes = 256u << 10;

struct TextInput {
  std::unique_ptr<base::ByteSource> source;
  bool is_json = false;  // a document in each line; else all of it is one
};

// Opens a file here or on s3://; by its name it is JSON lines or a text. Throws FormatError for one
// in UTF-16.
TextInput open_text_input(const std::string& location);

// Where the piece that begins at or after `offset`, a multiple of kPieceBytes, really begins: at a
// line's start, so that no document of JSON lines is cut. Of a text it is, if the next kPieceBytes
// have one, a line between two that are not blank, since there every tokenizer cuts anyway; else
// any line, and if there is none, any character. Throws FormatError for a line of JSON without an
// end.
uint64_t piece_start(const TextInput& input, uint64_t offset);

struct TextPiece {
  size_t input = 0;  // which
  uint64_t begin = 0;
  uint64_t end = 0;
};

// Rank's share of the pieces of all inputs, in order; some may be empty.
struct ShareOfPieces {
  int rank = 0;
  int num_ranks = 1;
};
std::vector<TextPiece> share_of_pieces(const std::vector<TextInput>& inputs, ShareOfPieces share);

}  // namespace lockstep::data
