#pragma once

// What a kind of tokenizer does with a text in which no added token stands.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizers/text_normalizer.h"
#include "tokenizers/word_cache.h"

namespace lockstep::tokenizers {

// A symbol of a word in byte-pair encoding.
struct MergeSymbol {
  int32_t id = 0;
  uint32_t rank = 0;  // of the pair that it is with the next one
};

// What one call of encode needs; kept for the next one, since its cache is warm.
struct EncodeScratch {
  IdList ids;                        // the result so far
  WordCache cache;                   // words as they stand in the text
  std::string normalized;            // a word or a piece of text
  std::string prefixed;              // a piece of text with a blank before it
  std::vector<MergeSymbol> symbols;  // of a word that is being merged
};

// Threads: const methods may be called concurrently, each with a scratch of its own.
class TokenModel {
 public:
  virtual ~TokenModel() = default;

  // Appends the ids of `text`, which is valid UTF-8, to scratch.ids.
  virtual void append_ids(std::string_view text, EncodeScratch& scratch) const = 0;

  // The text of a list of tokens.
  virtual std::string join(const std::vector<std::string_view>& tokens) const = 0;

  virtual const char* kind() const = 0;
};

}  // namespace lockstep::tokenizers
