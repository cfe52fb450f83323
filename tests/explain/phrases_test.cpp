#include "explain/phrases.h"

#include <algorithm>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "explain/lesson.h"

namespace lockstep {
namespace {

// Hangul syllables are U+AC00 to U+D7A3: EA B0 80 to ED 9E A3 in UTF-8.
bool begins_with_hangul(std::string_view text) {
  return text.size() >= 3 && text.substr(0, 3) >= "\xEA\xB0\x80" &&
         text.substr(0, 3) <= "\xED\x9E\xA3";
}

bool has_hangul(std::string_view text) {
  for (size_t i = 0; i < text.size(); ++i) {
    if (begins_with_hangul(text.substr(i))) {
      return true;
    }
  }
  return false;
}

std::set<std::string> placeholders(std::string_view text) {
  std::set<std::string> found;
  for (size_t open = text.find('{'); open != text.npos; open = text.find('{', open + 1)) {
    found.insert(std::string(text.substr(open, text.find('}', open) + 1 - open)));
  }
  return found;
}

template <typename Check>
void for_each_phrase(Check check) {
  for (const auto& lesson : explain::lessons()) {
    for (const auto& phrase : lesson.phrases) {
      SCOPED_TRACE(std::string(lesson.name) + ": " + std::string(phrase.key));
      check(phrase);
    }
  }
}

TEST(Phrases, EveryPhraseIsWrittenInBothLanguages) {
  for_each_phrase([](const explain::Phrase& phrase) {
    EXPECT_FALSE(phrase.english.empty());
    EXPECT_FALSE(phrase.korean.empty());
    EXPECT_FALSE(has_hangul(phrase.english));
    // A symbol or a technical term may be the same in both.
    EXPECT_TRUE(has_hangul(phrase.korean) || phrase.korean == phrase.english);
  });
}

TEST(Phrases, BothLanguagesTakeTheSameValues) {
  for_each_phrase([](const explain::Phrase& phrase) {
    EXPECT_EQ(placeholders(phrase.english), placeholders(phrase.korean));
    const auto format = [](std::string_view text) {
      return fmt::format(fmt::runtime(text), "a", "b", "c", "d", "e");
    };
    EXPECT_NO_THROW(format(phrase.english));
    EXPECT_NO_THROW(format(phrase.korean));
  });
}

TEST(Phrases, NoKoreanParticleFollowsAValue) {
  for_each_phrase([](const explain::Phrase& phrase) {
    for (size_t at = phrase.korean.find('}'); at != phrase.korean.npos;
         at = phrase.korean.find('}', at + 1)) {
      const std::string_view rest = phrase.korean.substr(at + 1);
      // Counters (sheets, pieces) have one form whatever the number.
      EXPECT_TRUE(!begins_with_hangul(rest) || rest.starts_with("장") || rest.starts_with("개"));
    }
  });
}

TEST(Phrases, KeysOfALessonAreUnique) {
  for (const auto& lesson : explain::lessons()) {
    std::set<std::string_view> keys;
    for (const auto& phrase : lesson.phrases) {
      EXPECT_TRUE(keys.insert(phrase.key).second) << lesson.name << ": " << phrase.key;
    }
  }
}

// `replicate` shows it: DistributedDataParallel compares names and shapes, and overwrites values.
TEST(Phrases, ScratchSaysWhatHappensToAnotherSeed) {
  for (const explain::Language language : {explain::Language::English, explain::Language::Korean}) {
    const std::string told =
        explain::Speaker(explain::scratch_phrases(), language)("wrap", "0.1", "1 MiB", 0);
    EXPECT_EQ(told.find("found out"), told.npos) << told;
    EXPECT_EQ(told.find("여기서 드러납니다"), told.npos) << told;
    EXPECT_NE(told.find(language == explain::Language::English ? "overwritten" : "덮어쓰"),
              told.npos)
        << told;
  }
}

TEST(Speaker, SaysThePhraseInItsLanguageWithTheValues) {
  constexpr explain::Phrase kPhrases[] = {{"count", "{0} of {1}", "{1} 중 {0}"}};
  EXPECT_EQ(explain::Speaker(kPhrases, explain::Language::English)("count", 1, 2), "1 of 2");
  EXPECT_EQ(explain::Speaker(kPhrases, explain::Language::Korean)("count", 1, 2), "2 중 1");
}

TEST(Speaker, AnUnknownKeyIsABug) {
  EXPECT_THROW(explain::Speaker({}, explain::Language::English)("nothing"), InternalError);
}

TEST(LanguageOfLocale, OnlyKoreanLocalesAreKorean) {
  for (const char* korean : {"ko", "ko_KR", "ko_KR.UTF-8", "ko_KR@x", "ko.UTF-8"}) {
    EXPECT_EQ(explain::language_of_locale(korean), explain::Language::Korean) << korean;
  }
  for (const char* other : {"", "C", "C.UTF-8", "en_US.UTF-8", "kok_IN", "POSIX"}) {
    EXPECT_EQ(explain::language_of_locale(other), explain::Language::English) << other;
  }
}

}  // namespace
}  // namespace lockstep
