#include <bit>
#include <functional>
#include <set>
#include <string_view>

#include <nlohmann/json.hpp>

#include "bench/tokenize/bench_tokenize.h"

namespace lockstep::app {

namespace {

using nlohmann::json;

constexpr const char* kSyllables[] = {
    "an", "be", "co",  "da", "en", "fi",  "go",   "ha", "in",   "jo",  "ka",  "lo", "ma", "ne",
    "on", "pa", "qui", "re", "st", "ter", "un",   "ve", "wa",   "xi",  "you", "ze", "al", "br",
    "ch", "de", "er",  "fo", "gr", "ing", "tion", "le", "ment", "ous", "pre", "sh"};
constexpr uint64_t kNumSyllables = std::size(kSyllables);
constexpr int kRankBits = 15;  // 32,767 words, 4,095 Chinese characters
constexpr int kHanBits = 12;

class Dice {
 public:
  explicit Dice(uint64_t seed) : state_(seed) {}
  uint64_t below(uint64_t limit) {
    state_ += 0x9E3779B97F4A7C15u;
    uint64_t z = (state_ ^ state_ >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return (z ^ z >> 31) % limit;
  }
  // Small ones come often: every power of two is as likely as the next (Zipf's law).
  uint64_t rank(int bits) {
    const uint64_t begin = uint64_t{1} << below(static_cast<uint64_t>(bits));
    return begin - 1 + below(begin);
  }

 private:
  uint64_t state_;
};

void append_point(std::string& text, uint64_t point) {  // of three bytes
  text += static_cast<char>(0xE0 | point >> 12);
  text += static_cast<char>(0x80 | (point >> 6 & 0x3F));
  text += static_cast<char>(0x80 | (point & 0x3F));
}

std::string word(uint64_t rank) {
  Dice dice(rank);
  std::string text;
  for (uint64_t left = 1 + std::bit_width(rank) / 4 + dice.below(2); left > 0; --left) {
    text += kSyllables[dice.below(kNumSyllables)];
  }
  return text;
}

std::string han(uint64_t rank) {
  std::string text;
  append_point(text, 0x4E00 + rank * 7919 % 20902);
  return text;
}

void append_english(std::string& text, Dice& dice) {
  for (uint64_t left = 4 + dice.below(16); left > 0; --left) {
    std::string next = word(dice.rank(kRankBits));
    if (dice.below(12) == 0) {
      next[0] = static_cast<char>(next[0] - 'a' + 'A');
    }
    constexpr const char* kEnds[] = {",", "'s", " 1984", " (x)", "-", ";"};
    text += next + (dice.below(10) == 0 ? kEnds[dice.below(std::size(kEnds))] : "");
    text += left > 1 ? " " : ". ";
  }
}

void append_chinese(std::string& text, Dice& dice) {
  for (uint64_t left = 8 + dice.below(32); left > 0; --left) {
    text += han(dice.rank(kHanBits));
    if (dice.below(12) == 0) {
      text += "\uff0c";
    }
    if (dice.below(60) == 0) {
      text += word(dice.rank(kRankBits));
    }
  }
  text += "\u3002";
}

void append_others(std::string& text, Dice& dice) {
  constexpr const char* kPieces[] = {"caf\u00e9",
                                     "\u043f\u0440\u0438\u0432\u0435\u0442",
                                     "\ud55c\uad6d\uc5b4\ub97c",
                                     "\u3053\u3093\u306b\u3061\u306f",
                                     "\U0001F600",
                                     "2,718.28",
                                     "x86_64",
                                     "Stra\u00dfe",
                                     "\u0627\u0644\u0639\u0631\u0628\u064a\u0629",
                                     "https://example.org/?q=1"};
  for (uint64_t left = 4 + dice.below(8); left > 0; --left) {
    text += kPieces[dice.below(std::size(kPieces))];
    text += " " + word(dice.rank(kRankBits)) + " ";
  }
}

// Appends the merges that build each word from its left end, each once.
class Merges {
 public:
  Merges() {
    for (uint64_t byte = 0; byte < 256; ++byte) {
      const bool is_shown = (byte >= 33 && byte <= 126) || (byte >= 161 && byte != 173);
      letters_.push_back(letter(is_shown ? byte : 256 + num_hidden_++));
      vocabulary_[letters_.back()] = vocabulary_.size();
    }
  }
  void add(std::string_view bytes) {
    std::string left = letter_of(bytes[0]);
    for (const char byte : bytes.substr(1)) {
      const std::string right = letter_of(byte);
      std::string both = left + right;
      if (!vocabulary_.contains(both)) {
        vocabulary_[both] = vocabulary_.size();
        merges_.push_back({left, right});
      }
      left = std::move(both);
    }
  }
  json model() const { return {{"type", "BPE"}, {"vocab", vocabulary_}, {"merges", merges_}}; }

 private:
  static std::string letter(uint64_t point) {
    return point < 128 ? std::string(1, static_cast<char>(point))
                       : std::string{static_cast<char>(0xC0 | point >> 6),
                                     static_cast<char>(0x80 | (point & 0x3F))};
  }
  const std::string& letter_of(char byte) const {
    return letters_[static_cast<unsigned char>(byte)];
  }

  std::vector<std::string> letters_;
  uint64_t num_hidden_ = 0;
  json vocabulary_ = json::object();
  std::vector<std::vector<std::string>> merges_;
};

json byte_pair_model() {
  Merges merges;
  for (uint64_t rank = 0; rank < 6000; ++rank) {
    merges.add(" " + word(rank));
  }
  for (uint64_t rank = 0; rank < 2000; ++rank) {
    merges.add(han(rank));
  }
  return merges.model();
}

json word_piece_model() {
  json vocabulary = json::object();
  const auto add = [&](const std::string& token) {
    if (!vocabulary.contains(token)) {
      vocabulary[token] = vocabulary.size();
    }
  };
  for (const char* token : {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}) {
    add(token);
  }
  for (char c = '!'; c <= '~'; ++c) {
    add(std::string(1, c));
    add(std::string("##") + c);
  }
  for (const char* syllable : kSyllables) {
    add(syllable);
    add(std::string("##") + syllable);
  }
  for (uint64_t rank = 0; rank < 16000; ++rank) {
    add(word(rank));
  }
  for (uint64_t rank = 0; rank < uint64_t{1} << kHanBits; ++rank) {
    add(han(rank));
  }
  return {{"type", "WordPiece"},
          {"unk_token", "[UNK]"},
          {"continuing_subword_prefix", "##"},
          {"max_input_chars_per_word", 100},
          {"vocab", vocabulary}};
}

}  // namespace

std::string generated_text(const std::string& script, size_t bytes) {
  Dice dice(42);
  std::string text;
  text.reserve(bytes + 1024);
  while (text.size() < bytes) {
    for (uint64_t left = 2 + dice.below(6); left > 0; --left) {
      const uint64_t choice = script == "english" ? 0 : script == "chinese" ? 1 : dice.below(3);
      choice == 0   ? append_english(text, dice)
      : choice == 1 ? append_chinese(text, dice)
                    : append_others(text, dice);
    }
    text += '\n';
  }
  return text;
}

std::string generated_vocabulary(const std::string& kind) {
  const bool is_word_piece = kind == "wordpiece";
  json description{{"version", "1.0"},      {"truncation", nullptr},
                   {"padding", nullptr},    {"added_tokens", json::array()},
                   {"normalizer", nullptr}, {"post_processor", nullptr},
                   {"decoder", nullptr}};
  if (is_word_piece) {
    description["normalizer"] = {{"type", "BertNormalizer"},
                                 {"clean_text", true},
                                 {"handle_chinese_chars", true},
                                 {"strip_accents", nullptr},
                                 {"lowercase", true}};
    description["pre_tokenizer"] = {{"type", "BertPreTokenizer"}};
    description["model"] = word_piece_model();
  } else {
    description["pre_tokenizer"] = {{"type", "ByteLevel"},
                                    {"add_prefix_space", false},
                                    {"trim_offsets", true},
                                    {"use_regex", true}};
    description["model"] = byte_pair_model();
  }
  return description.dump();
}

}  // namespace lockstep::app
