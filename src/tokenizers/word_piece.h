#pragma once

// BERT: words are cut at white space, punctuation and Chinese characters; of each word the longest
// token that it begins with is taken, then the longest continuation, until nothing is left.

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizers/token_model.h"
#include "tokenizers/token_trie.h"
#include "tokenizers/vocabulary.h"

namespace lockstep::tokenizers {

struct WordPieceSettings {
  TextNormalizer normalizer;
  std::string unknown = "[UNK]";
  std::string continuation = "##";  // begins the tokens that do not begin a word
  size_t max_word_points = 100;     // a longer word is unknown
  bool has_decoder = true;          // false: tokens are joined by blanks
  std::string decoder_prefix = "##";
  bool cleans_decoded = true;  // no blank before punctuation and the like
};

class WordPiece : public TokenModel {
 public:
  // Throws FormatError, beginning with `place`, if the vocabulary lacks the unknown token.
  WordPiece(const Vocabulary& vocabulary, WordPieceSettings settings, std::string_view place);

  void append_ids(std::string_view text, EncodeScratch& scratch) const override;
  std::string join(const std::vector<std::string_view>& tokens) const override;
  const char* kind() const override { return "wordpiece"; }

 private:
  // What a byte of ASCII does to a text that the normalizer has not seen.
  enum class Role : uint8_t { Part, Alone, Break, High };

  const char* end_of_part(const char* at, const char* end) const;
  bool stands_alone(char32_t point) const;
  void append_part(std::string_view part, EncodeScratch& scratch) const;
  void append_word(std::string_view word, IdList& ids) const;
  void set_roles();

  WordPieceSettings settings_;
  TokenTrie beginnings_;
  TokenTrie continuations_;
  int32_t unknown_ = 0;
  bool cuts_chinese_ = false;
  bool composes_ = false;
  std::array<Role, 256> roles_{};
  std::array<int32_t, 128> alone_id_{};
};

}  // namespace lockstep::tokenizers
