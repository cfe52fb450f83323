#pragma once

// Files of token ids, as nanoGPT and llm.c write them.

#include <cstdint>
#include <span>
#include <string>

#include "base/atomic_file.h"
#include "base/byte_source.h"
#include "formats/dtype.h"

namespace lockstep::formats {

struct TokenFile {
  DType dtype = DType::U16;   // U16, or U32 in llm.c's files for Llama 3
  uint64_t offset_bytes = 0;  // of the first token
  uint64_t num_tokens = 0;
};

// llm.c: 256 int32 (magic, version, number of tokens), then the tokens; its size must be exactly
// that. nanoGPT: nothing but uint16. The magics of llm.c are no ids of GPT-2's vocabulary, so that
// no file of nanoGPT begins like one of llm.c. Throws FormatError. A file of neither cannot be told
// from nanoGPT's: the user of a token checks it against the vocabulary.
TokenFile read_token_file(const base::ByteSource& source);

// Whether a file that begins with this number (little-endian) is one of llm.c.
bool is_llmc_magic(uint32_t magic);

enum class TokenLayout : uint8_t {
  NanoGpt,     // uint16, no header
  LlmcGpt2,    // header, uint16
  LlmcLlama3,  // header, uint32
};

// Writes such files.
class TokenWriter {
 public:
  // `num_tokens` stands in llm.c's header, and is below 2^31 there. Throws UsageError.
  TokenWriter(std::string path, TokenLayout layout, uint64_t num_tokens);

  // Throws UsageError for an id that does not fit.
  void append(std::span<const uint32_t> ids);

  // The file is there afterwards. Throws UsageError if the tokens are too few or too many.
  void finish();

 private:
  std::string path_;
  TokenLayout layout_;
  uint64_t num_tokens_;
  uint64_t num_appended_ = 0;
  base::AtomicFile file_;
};

}  // namespace lockstep::formats
