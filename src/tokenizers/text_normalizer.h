#pragma once

// What happens to a text before it is cut into words: the normalizers of BERT's and GPT-2's
// relatives, one after the other.

#include <string>
#include <string_view>
#include <vector>

#include "tokenizers/unicode.h"

namespace lockstep::tokenizers {

class TextNormalizer {
 public:
  enum class Step {
    Clean,         // BERT: control characters go, white space becomes a blank
    SpaceChinese,  // BERT: a blank before and after every Chinese character
    StripAccents,  // BERT: decompose, drop what is Mn
    StripMarks,    // drop what is M*, decompose nothing
    Lowercase,
    Decompose,  // NFD
    Compose,    // NFC
  };

  void add(Step step) { steps_.push_back(step); }
  bool has(Step step) const;
  bool is_identity() const { return steps_.empty(); }

  // Replaces `out` by what becomes of `text`, which is valid UTF-8.
  void apply(std::string_view text, std::string& out) const;

 private:
  std::vector<Step> steps_;
};

}  // namespace lockstep::tokenizers
