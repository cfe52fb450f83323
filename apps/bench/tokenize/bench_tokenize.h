#pragma once

// What `lockstep bench tokenize` measures, and how.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::app {

struct TokenizeBench {
  std::string vocabulary;  // a folder or a file
  std::vector<std::string_view> texts;
  std::string python;  // the peer's; empty: no peer
  int repeats = 5;
};

// Seconds of CPU time, one value per repeat, in order; those of a peer that is not there are empty.
struct TokenizeFigures {
  std::string kind;  // of the tokenizer
  int64_t num_tokens = 0;
  std::vector<double> lockstep_cpu_s;
  std::vector<double> peer_cpu_s;
};

// Each round encodes all texts here and then there, on one thread, and compares the ids. Throws
// IoError if they differ or the peer fails.
TokenizeFigures measure_tokenize(const TokenizeBench& bench);

// Makes a text of about `bytes`, the same at every call: lines of words and characters whose
// frequencies follow their ranks, as in a language. `script` is english, chinese or mixed.
std::string generated_text(const std::string& script, size_t bytes);

// Makes a tokenizer.json for such texts: "wordpiece" or "byte-bpe".
std::string generated_vocabulary(const std::string& kind);

}  // namespace lockstep::app
