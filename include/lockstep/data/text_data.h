#pragma once

// Texts with labels, for classifiers, from a file with one JSON object per line, such as
// {"text": "a fine film", "label": 1}.
//
// Example:
//   auto data = lockstep::open_labelled_text(
//       "train.jsonl", {.tokenizer = "bert-base-uncased", .num_labels = 2});

#include <cstdint>
#include <memory>
#include <string>

#include <lockstep/data/dataset.h>

namespace lockstep {

class Tokenizer;

struct LabelledTextOptions {
  std::string tokenizer;              // REQUIRED: a folder or a file, as for load_tokenizer()
  int64_t max_length = 128;           // >= 1: the most ids of a text, special ones included
  std::string text_field = "text";    // the field with the text, a string
  std::string label_field = "label";  // the field with the label, an integer >= 0
  CorruptSample on_corrupt = CorruptSample::Fatal;  // for a line without these fields
  int64_t num_labels = 0;  // if > 0, all labels are read at once, and one that is not below it is a
                           // UsageError
};

// Opens the file; sample i is line i, not counting empty lines. Texts are tokenized when they are
// asked for. A batch has an int64 input [B, T], where T is the length of its longest text and
// shorter ones are filled up on the right with padding_id(tokenizer), a bool "attention_mask"
// [B, T], which is true up to the padding, and an int64 target [B].
// A file on a path is read line by line, and one on s3:// is read whole into memory.
//
// Throws UsageError for an option out of range, IoError for what cannot be read, and FormatError
// for a tokenizer or a line that is damaged.
std::shared_ptr<const Dataset> open_labelled_text(const std::string& jsonl,
                                                  LabelledTextOptions options);

// The id that fills texts up: the tokenizer's padding id, or its end-of-text id, or else 0. A text
// may contain that id too; only the ids after the last different one are padding.
int64_t padding_id(const Tokenizer& tokenizer);

}  // namespace lockstep
