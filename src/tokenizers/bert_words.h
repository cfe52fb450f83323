#pragma once

// Where BERT cuts a normalized text into words.

#include <string_view>

#include "base/text/utf8.h"
#include "tokenizers/unicode.h"

namespace lockstep::tokenizers {

// Calls `function(word)` for what stands between white space and punctuation, and for each
// punctuation mark.
template <typename Function>
void for_each_bert_word(std::string_view text, Function function) {
  const Unicode& unicode = Unicode::get();
  const char* begin = text.data();
  const char* const end = begin + text.size();
  const auto flush = [&](const char* to) {
    if (to != begin) {
      function(std::string_view(begin, static_cast<size_t>(to - begin)));
    }
  };
  for (const char* at = begin; at != end;) {
    const char* const here = at;
    const uint8_t classes = unicode.classes(base::next_code_point(at));
    if ((classes & (kSpace | kPunctuation)) != 0) {
      flush(here);
      begin = here;
      if ((classes & kSpace) == 0) {
        flush(at);
      }
      begin = at;
    }
  }
  flush(end);
}

}  // namespace lockstep::tokenizers
