#pragma once

// Texts with labels, for classifiers: a file of JSON lines.
//
//   {"text": "a fine film", "label": 1}
//
//   auto data = open_labelled_text("train.jsonl", {.tokenizer = "bert-base-uncased"});

#include <cstdint>
#include <memory>
#include <string>

#include <lockstep/data/dataset.h>

namespace lockstep {

class Tokenizer;

struct LabelledTextOptions {
  std::string tokenizer;              // REQUIRED: a folder or a file, as for load_tokenizer()
  int64_t max_length = 128;           // >= 1: ids of a text at most, special ones included
  std::string text_field = "text";    // of a line: a string
  std::string label_field = "label";  // of a line: a whole number >= 0
  CorruptSample on_corrupt = CorruptSample::Fatal;  // of a line that is not that
  int64_t num_labels = 0;  // > 0: the labels of all lines are read at once, and one that is not
                           // below it is a UsageError
};

// Sample i is line i, lines that are empty left out; texts are made into ids when they are asked
// for. A batch: input int64 [B, T], T the longest of its texts, shorter ones filled up on the right
// with padding_id(tokenizer); target int64 [B].
// A file here is read by line, one on s3:// whole, into memory.
// Throws UsageError, IoError, and FormatError for a tokenizer that is none.
std::shared_ptr<const Dataset> open_labelled_text(const std::string& jsonl,
                                                  LabelledTextOptions options);

// What texts are filled up with: the tokenizer's padding id, its end-of-text id where it has none,
// else 0. A text may hold that id too: what is padding is what stands behind its last other one.
int64_t padding_id(const Tokenizer& tokenizer);

}  // namespace lockstep
