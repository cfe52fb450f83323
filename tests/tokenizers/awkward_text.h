#pragma once

// Texts that tokenizers stumble over: control characters, marks in every order, emoji, all scripts,
// white space of all kinds, special tokens in strange places, bytes that are no UTF-8.

#include <cstdint>
#include <string>

namespace lockstep::test {

constexpr uint64_t kNumAwkwardTexts = 20'000;

// The same as text_bytes() in tests/tokenizers/golden/awkward_text.py: any change is made in both.
std::string awkward_text(uint64_t index);

// A small generator of numbers, the same in both languages.
class TextDice {
 public:
  explicit TextDice(uint64_t seed) : state_(seed) {}
  uint64_t below(uint64_t limit);

 private:
  uint64_t state_;
};

}  // namespace lockstep::test
