#pragma once

// What is put around one text or two: [CLS] A [SEP] B [SEP].

#include <cstdint>
#include <span>
#include <vector>

#include <lockstep/tokenizers/tokenizer.h>

namespace lockstep::tokenizers {

struct TokenTemplate {
  struct Part {
    enum class What { First, Second, Token };
    What what = What::First;
    int32_t id = 0;  // of a Token
    int32_t type_id = 0;
  };
  std::vector<Part> single{{.what = Part::What::First}};
  std::vector<Part> pair{{.what = Part::What::First}, {.what = Part::What::Second, .type_id = 1}};

  // [CLS] A [SEP] B [SEP], and as RoBERTa <s> A </s></s> B </s>.
  static TokenTemplate bert(int32_t classifier, int32_t separator);
  static TokenTemplate roberta(int32_t classifier, int32_t separator);
};

// How many ids of each text stay if they and `num_special` others may be `max_length` together.
// Throws UsageError.
struct Lengths {
  size_t first = 0;
  size_t second = 0;
};
Lengths truncated(Lengths lengths, size_t num_special, int64_t max_length);

Encoding fill(const std::vector<TokenTemplate::Part>& parts, std::span<const int32_t> first,
              std::span<const int32_t> second, const EncodeOptions& options);

}  // namespace lockstep::tokenizers
