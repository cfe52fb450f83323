#pragma once

// Tokens that are found in a text before anything else is done to it, or right after the
// normalizer: [MASK], <|endoftext|>, and what users added.

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <lockstep/tokenizers/tokenizer.h>

#include "tokenizers/text_normalizer.h"
#include "tokenizers/token_trie.h"

namespace lockstep::tokenizers {

class AddedTokens {
 public:
  AddedTokens() = default;
  // Tokens have their ids. `normalizer` for those that are searched in normalized text.
  AddedTokens(std::vector<AddedToken> tokens, const TextNormalizer& normalizer);

  bool has_normalized() const { return has_normalized_; }
  // Whether it is the text of a special token, as written: see shown().
  bool is_special(std::string_view token) const { return special_.contains(token); }

  // What decoding shows for a token: its normalized form if it is searched in normalized text.
  std::string_view shown(int32_t id, std::string_view token) const;

  struct Piece {
    std::string_view text;
    int32_t id = -1;  // -1: no token stands here
  };
  // The pieces of a text, in order and never empty: tokens as written, or (`normalized`) those that
  // are searched in normalized text.
  void split(std::string_view text, bool normalized, std::vector<Piece>& pieces) const;

 private:
  std::vector<AddedToken> tokens_;
  TokenTrie plain_;  // to the index of the token
  TokenTrie normalized_;
  bool has_normalized_ = false;  // even if nothing is left of them when they are normalized
  std::map<int32_t, std::string> shown_;
  std::set<std::string, std::less<>> special_;
};

}  // namespace lockstep::tokenizers
