#pragma once

// What Hugging Face's tokenizers know about code points. Their parts use different versions of
// Unicode (docs/concepts/tokenizers.md); these tables are theirs, not those of one version.

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace lockstep::tokenizers {

// Classes of a code point; a code point may have several.
constexpr uint8_t kLetter = 1;          // \p{L} of GPT-2's expression
constexpr uint8_t kNumber = 2;          // \p{N} of it
constexpr uint8_t kSpace = 4;           // \s of it, and the white space of BERT
constexpr uint8_t kPunctuation = 8;     // BERT's: all of ASCII's symbols, and P*
constexpr uint8_t kNonSpacing = 16;     // Mn: what BERT strips as accents
constexpr uint8_t kControl = 32;        // what BERT's cleaning drops
constexpr uint8_t kWordCharacter = 64;  // \w, around tokens that are to be whole words
constexpr uint8_t kMark = 128;          // M*: what the normalizer StripAccents strips

// Values of all code points, in pages of which equal ones are kept once.
template <typename Value>
class CodePointTable {
 public:
  CodePointTable() = default;
  explicit CodePointTable(const std::vector<Value>& values) {
    std::map<std::array<Value, kPage>, uint16_t> known;
    for (size_t at = 0; at < values.size(); at += kPage) {
      std::array<Value, kPage> page;
      std::copy_n(values.begin() + static_cast<std::ptrdiff_t>(at), kPage, page.begin());
      const auto [place, is_new] = known.emplace(page, static_cast<uint16_t>(known.size()));
      if (is_new) {
        pages_.insert(pages_.end(), page.begin(), page.end());
      }
      page_of_.at(at / kPage) = place->second;
    }
  }

  Value operator[](char32_t point) const {
    return pages_[size_t{page_of_[point / kPage]} * kPage + point % kPage];
  }

 private:
  static constexpr size_t kPage = 128;
  std::array<uint16_t, 0x110000 / kPage> page_of_{};
  std::vector<Value> pages_;
};

class Unicode {
 public:
  uint8_t classes(char32_t point) const { return classes_[point]; }
  bool is_chinese(char32_t point) const;  // in BERT's sense
  uint8_t combining_class(char32_t point) const { return records_[record_of_[point]].combining; }

  // The lower case of U+0130 alone has two code points.
  void append_lower(std::u32string& text, char32_t point) const;
  // All the way down, parts in canonical order if `point` is alone.
  void append_decomposed(std::u32string& text, char32_t point) const;
  // What the two compose to; 0 if nothing.
  char32_t composed(char32_t first, char32_t second) const;

  static const Unicode& get();

 private:
  // What is known of a code point; the first record is that of all others.
  struct Record {
    char32_t lower = 0;   // 0: itself
    char32_t first = 0;   // 0: has no decomposition
    char32_t second = 0;  // 0: of one part only
    uint8_t combining = 0;
  };

  Unicode();
  void read_lower(std::vector<uint16_t>& record_of);
  void read_decompositions(std::vector<uint16_t>& record_of);
  void read_combining(std::vector<uint16_t>& record_of);
  Record& record(std::vector<uint16_t>& record_of, char32_t point);

  CodePointTable<uint8_t> classes_;
  CodePointTable<uint16_t> record_of_;
  std::vector<Record> records_{1};
  std::map<std::pair<char32_t, char32_t>, char32_t> composed_;
};

}  // namespace lockstep::tokenizers
