#pragma once

// Files of token ids, as nanoGPT and llm.c write them.

#include <cstdint>

#include "base/byte_source.h"
#include "formats/dtype.h"

namespace lockstep {

struct TokenFile {
  DType dtype = DType::U16;   // U16, or U32 in llm.c's files for Llama 3
  uint64_t offset_bytes = 0;  // of the first token
  uint64_t num_tokens = 0;
};

// llm.c: 256 int32 (magic, version, number of tokens), then the tokens; its size must be exactly
// that. nanoGPT: nothing but uint16. The magics of llm.c are no ids of GPT-2's vocabulary, so that
// no file of nanoGPT begins like one of llm.c. Throws FormatError. A file of neither cannot be told
// from nanoGPT's: the user of a token checks it against the vocabulary.
TokenFile read_token_file(const ByteSource& source);

}  // namespace lockstep
