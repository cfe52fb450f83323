#pragma once

// From settings to a tokenizer, whatever file or code they come from.

#include <string>
#include <string_view>
#include <vector>

#include <lockstep/tokenizers/tokenizer.h>

#include "tokenizers/byte_pair.h"
#include "tokenizers/tokenizer_parts.h"
#include "tokenizers/word_piece.h"

namespace lockstep::tokenizers {

// The tokens that play a part; empty: none does.
struct SpecialNames {
  std::string unknown, padding, classifier, separator, mask, begin, end;

  static SpecialNames bert();
  static SpecialNames gpt2();
};

// What is common to both kinds.
struct CommonSettings {
  std::string place;  // the file, for messages
  Vocabulary vocabulary;
  std::vector<AddedToken> added;
  SpecialNames names;
  TokenTemplate around;
};

using PartsPointer = std::shared_ptr<const TokenizerParts>;

// Throw FormatError.
PartsPointer build(CommonSettings common, WordPieceSettings settings);
PartsPointer build(CommonSettings common, BytePairSettings settings);

// The tokens of `names` that the vocabulary has, as special tokens, after those of `added`.
void add_special_tokens(CommonSettings& common);

// BERT's normalizer. `strip_accents`: nothing means as `lowercase`.
struct BertNormalizerOptions {
  bool clean = true;
  bool split_chinese = true;
  std::optional<bool> strip_accents;
  bool lowercase = true;
};
void add_bert_normalizer(TextNormalizer& normalizer, const BertNormalizerOptions& options);

// [CLS] A [SEP] if the vocabulary has both.
TokenTemplate bert_template(const CommonSettings& common);

}  // namespace lockstep::tokenizers
