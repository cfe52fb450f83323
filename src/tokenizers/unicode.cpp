#include "tokenizers/unicode.h"

#include <algorithm>

#include "tokenizers/unicode_tables.h"

namespace lockstep::tokenizers {

namespace {

constexpr char32_t kNumPoints = 0x110000;
constexpr char32_t kCapitalIWithDot = 0x130;

// Hangul syllables are computed, not listed: Unicode standard, section 3.12.
constexpr char32_t kSyllable = 0xAC00;
constexpr char32_t kLeading = 0x1100;
constexpr char32_t kVowel = 0x1161;
constexpr char32_t kTrailing = 0x11A7;
constexpr char32_t kNumLeading = 19;
constexpr char32_t kNumVowels = 21;
constexpr char32_t kNumTrailing = 28;
constexpr char32_t kNumSyllables = kNumLeading * kNumVowels * kNumTrailing;

bool is_syllable(char32_t point) {
  return point >= kSyllable && point < kSyllable + kNumSyllables;
}

char32_t composed_syllable(char32_t first, char32_t second) {
  if (first >= kLeading && first < kLeading + kNumLeading && second >= kVowel &&
      second < kVowel + kNumVowels) {
    return kSyllable + ((first - kLeading) * kNumVowels + (second - kVowel)) * kNumTrailing;
  }
  if (is_syllable(first) && (first - kSyllable) % kNumTrailing == 0 && second > kTrailing &&
      second < kTrailing + kNumTrailing) {
    return first + (second - kTrailing);
  }
  return 0;
}

std::vector<uint8_t> read_classes() {
  std::vector<uint8_t> classes;
  classes.reserve(kNumPoints);
  for (size_t i = 0; i < kClassRunsSize; i += 2) {
    classes.insert(classes.end(), kClassRuns[i], static_cast<uint8_t>(kClassRuns[i + 1]));
  }
  return classes;
}

}  // namespace

Unicode::Unicode() : classes_(read_classes()) {
  std::vector<uint16_t> record_of(kNumPoints);
  read_lower(record_of);
  read_decompositions(record_of);
  read_combining(record_of);
  record_of_ = CodePointTable<uint16_t>(record_of);
}

const Unicode& Unicode::get() {
  static const Unicode unicode;
  return unicode;
}

Unicode::Record& Unicode::record(std::vector<uint16_t>& record_of, char32_t point) {
  if (record_of[point] == 0) {
    record_of[point] = static_cast<uint16_t>(records_.size());
    records_.emplace_back();
  }
  return records_[record_of[point]];
}

void Unicode::read_lower(std::vector<uint16_t>& record_of) {
  int32_t first = 0;
  for (size_t i = 0; i < kLowerRunsSize; i += 4) {
    first += kLowerRuns[i];
    for (int32_t n = 0; n < kLowerRuns[i + 1]; ++n) {
      const int32_t point = first + n * kLowerRuns[i + 2];
      record(record_of, static_cast<char32_t>(point)).lower =
          static_cast<char32_t>(point + kLowerRuns[i + 3]);
    }
  }
}

void Unicode::read_decompositions(std::vector<uint16_t>& record_of) {
  char32_t point = 0;
  for (size_t i = 0; i < kDecompositionsSize; i += 3) {
    point += kDecompositions[i];
    const char32_t first = kDecompositions[i + 1];
    const char32_t second = kDecompositions[i + 2];
    Record& entry = record(record_of, point);
    entry.first = first;
    entry.second = second;
    if (second != 0 &&
        !std::binary_search(kNeverComposed, kNeverComposed + kNeverComposedSize, point)) {
      composed_.emplace(std::pair(first, second), point);
    }
  }
}

void Unicode::read_combining(std::vector<uint16_t>& record_of) {
  char32_t point = 0;
  for (size_t i = 0; i < kCombiningRunsSize; i += 3) {
    point += kCombiningRuns[i];
    for (uint32_t n = 0; n < kCombiningRuns[i + 1]; ++n) {
      record(record_of, point++).combining = static_cast<uint8_t>(kCombiningRuns[i + 2]);
    }
  }
}

bool Unicode::is_chinese(char32_t point) const {
  if (point < kChineseRanges[0]) {
    return false;
  }
  for (size_t i = 0; i < kChineseRangesSize; i += 2) {
    if (point >= kChineseRanges[i] && point <= kChineseRanges[i + 1]) {
      return true;
    }
  }
  return false;
}

void Unicode::append_lower(std::u32string& text, char32_t point) const {
  if (point == kCapitalIWithDot) {
    text += U"i\u0307";
    return;
  }
  const char32_t lower = records_[record_of_[point]].lower;
  text += lower != 0 ? lower : point;
}

void Unicode::append_decomposed(std::u32string& text, char32_t point) const {
  if (is_syllable(point)) {
    const char32_t index = point - kSyllable;
    text += kLeading + index / (kNumVowels * kNumTrailing);
    text += kVowel + index / kNumTrailing % kNumVowels;
    if (index % kNumTrailing != 0) {
      text += kTrailing + index % kNumTrailing;
    }
    return;
  }
  const Record& entry = records_[record_of_[point]];
  if (entry.first == 0) {
    text += point;
    return;
  }
  append_decomposed(text, entry.first);
  if (entry.second != 0) {
    append_decomposed(text, entry.second);
  }
}

char32_t Unicode::composed(char32_t first, char32_t second) const {
  if (const char32_t syllable = composed_syllable(first, second); syllable != 0) {
    return syllable;
  }
  const auto found = composed_.find({first, second});
  return found == composed_.end() ? 0 : found->second;
}

}  // namespace lockstep::tokenizers
