#pragma once

// GPT-2: a text is cut into pieces; the bytes of a piece are symbols, and of the pairs that stand
// side by side the one with the lowest rank is merged, the leftmost first, until none has a rank.

#include <array>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tokenizers/pair_ranks.h"
#include "tokenizers/token_model.h"
#include "tokenizers/vocabulary.h"

namespace lockstep::tokenizers {

struct Merge {
  std::string left;
  std::string right;
  size_t line = 0;  // where it stands in its file; 0: there are no lines
};

struct BytePairSettings {
  TextNormalizer normalizer;
  std::vector<Merge> merges;      // in the order of their ranks
  std::string merges_place;       // their file, for messages
  std::string unknown;            // for bytes that are no token; empty: they are dropped
  bool add_prefix_space = false;  // a blank before each text that does not begin with one
  bool has_decoder = true;        // false: tokens are joined by blanks
};

class BytePair : public TokenModel {
 public:
  // Throws FormatError if a merge names a token that is not in the vocabulary, or is there twice.
  BytePair(const Vocabulary& vocabulary, const BytePairSettings& settings);

  void append_ids(std::string_view text, EncodeScratch& scratch) const override;
  std::string join(const std::vector<std::string_view>& tokens) const override;
  const char* kind() const override { return "byte-bpe"; }

 private:
  void append_piece(std::string_view piece, EncodeScratch& scratch) const;
  void merge_few(std::vector<MergeSymbol>& symbols) const;
  void merge_many(std::vector<MergeSymbol>& symbols) const;

  TextNormalizer normalizer_;
  PairRanks ranks_;
  std::array<int32_t, 256> symbol_of_{};  // of each byte; -1: dropped
  bool add_prefix_space_ = false;
  bool has_decoder_ = true;
};

}  // namespace lockstep::tokenizers
