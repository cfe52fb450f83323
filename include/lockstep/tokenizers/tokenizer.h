#pragma once

// Tokenizers turn text into the ids that a model reads, and back: BERT's WordPiece and GPT-2's
// byte-level BPE.
//
// Example:
//   const auto tokenizer = lockstep::load_tokenizer("bert-base-uncased");  // a folder
//   const auto tokens = tokenizer.encode("Hello, world!");  // [CLS] hello , world ! [SEP]
//   const std::string text = tokenizer.decode(tokens);      // "hello, world!"
//
// The ids are those of Hugging Face tokenizers 0.23, for any text. That library takes character
// classes from Unicode 8 and 16, decomposition from 9 and lower case from 17, and so does this one.
// A text need not be valid UTF-8: each maximal ill-formed part of it counts as U+FFFD, as in
// Python's bytes.decode(errors="replace").

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep {

struct EncodeOptions {
  bool add_special_tokens = true;        // [CLS] and [SEP], or what the tokenizer has for them
  std::optional<std::string_view> pair;  // a second text, for models that compare two
  int64_t max_length = 0;  // > 0: the most ids, special ones included; the end of the longer text
                           // is cut off first. 0: no limit
};

struct DecodeOptions {
  bool skip_special_tokens = true;
};

struct Encoding {
  std::vector<int32_t> ids;
  std::vector<int32_t> type_ids;  // 0 for the first text and 1 for the second, in BERT
};

// The ids of special tokens. A field is empty if the tokenizer has no such token.
struct SpecialIds {
  std::optional<int32_t> unknown;     // BERT: [UNK]
  std::optional<int32_t> padding;     // BERT: [PAD]
  std::optional<int32_t> classifier;  // BERT: [CLS]
  std::optional<int32_t> separator;   // BERT: [SEP]
  std::optional<int32_t> mask;        // BERT: [MASK]
  std::optional<int32_t> begin;       // GPT-2: <|endoftext|>
  std::optional<int32_t> end;         // GPT-2: <|endoftext|>
};

// A token that is found in a text before the text is cut into words.
struct AddedToken {
  std::string content;
  int32_t id = 0;
  bool special = true;       // decode() leaves it out, unless the normalizer changes its text
  bool normalized = false;   // it is searched in the normalized text, not in the text as it is
  bool single_word = false;  // it counts only where no letter, digit or _ touches it
  bool lstrip = false;       // it takes the white space before it
  bool rstrip = false;       // it takes the white space after it
};

namespace tokenizers {
struct TokenizerParts;
}

// A tokenizer of either kind. It is cheap to copy: copies share the vocabulary.
// Threads: const methods may be called concurrently.
class Tokenizer {
 public:
  // Returns the ids of a text. Throws UsageError if max_length is negative or leaves no room for
  // the special tokens.
  std::vector<int32_t> encode(std::string_view text, const EncodeOptions& options = {}) const;
  Encoding encode_with_types(std::string_view text, const EncodeOptions& options = {}) const;

  // Returns the text of ids. It is not always the text that was encoded: BERT's has lost its case
  // and its blanks. Throws UsageError for an id that is not a token.
  std::string decode(std::span<const int32_t> ids, const DecodeOptions& options = {}) const;

  // The largest id + 1, which is the number of rows that a model's embedding needs.
  int64_t vocab_size() const;

  // Returns nothing if there is no such token.
  std::optional<int32_t> id_of(std::string_view token) const;

  // Returns the token as the vocabulary writes it: "##ing", "Ġthe". Throws UsageError if `id` is
  // not a token.
  std::string token_of(int32_t id) const;

  const SpecialIds& special_ids() const;
  std::string kind() const;  // "wordpiece" or "byte-bpe"

  // load_tokenizer() calls this.
  explicit Tokenizer(std::shared_ptr<const tokenizers::TokenizerParts> parts);

 private:
  std::shared_ptr<const tokenizers::TokenizerParts> parts_;
};

struct WordPieceOptions {
  std::vector<std::string> vocabulary;  // REQUIRED: the id of a token is its place; with [UNK]
  bool lowercase = true;                // false is for a cased model
  std::optional<bool> strip_accents;    // empty means the same as `lowercase`
  bool split_chinese = true;            // makes every Chinese character a word of its own
};

// BERT's kind of tokenizer. [UNK], [PAD], [CLS], [SEP] and [MASK] are special where the vocabulary
// has them. The constructor throws FormatError for a malformed vocabulary.
class WordPieceTokenizer : public Tokenizer {
 public:
  explicit WordPieceTokenizer(const WordPieceOptions& options);
};

struct BytePairOptions {
  std::vector<std::string> vocabulary;  // REQUIRED: in GPT-2's alphabet of bytes, where "Ġ" is a
                                        // blank; the id of a token is its place
  std::vector<std::pair<std::string, std::string>> merges;  // in the order of their ranks
  bool add_prefix_space = false;  // puts a blank before a text that begins with none
};

// GPT-2's kind of tokenizer. <|endoftext|> is special if the vocabulary has it. The constructor
// throws FormatError for a merge whose tokens the vocabulary lacks.
class BytePairTokenizer : public Tokenizer {
 public:
  explicit BytePairTokenizer(const BytePairOptions& options);
};

// Reads a folder or a file of Hugging Face's, in one of these forms:
//
//   tokenizer.json             a model WordPiece or byte-level BPE; preferred in a folder
//   vocab.txt                  WordPiece, with tokenizer_config.json if it is beside it
//   vocab.json and merges.txt  byte-level BPE, with tokenizer_config.json if it is beside them
//
// Truncation and padding that a tokenizer.json may ask for are not done, because they belong to a
// batch. Throws IoError for what cannot be read, and FormatError with file and line for what is
// damaged or of an unknown kind (SentencePiece, Unigram, another pre-tokenizer, ...), which it
// names.
Tokenizer load_tokenizer(const std::string& path);

}  // namespace lockstep
