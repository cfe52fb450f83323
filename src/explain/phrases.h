#pragma once

// What the lessons say, in every language they speak.
//
// A lesson keeps its sentences in one table of pairs, so that none can be written in one language
// and forgotten in the other; tests walk the tables.

#include <span>
#include <string>
#include <string_view>

#include <fmt/format.h>

namespace lockstep::explain {

enum class Language { English, Korean };

// One sentence or word. Values are {0}, {1}, ...: numbered, because word order differs. In Korean
// no particle follows a value directly: its form would depend on how the value is read aloud.
struct Phrase {
  std::string_view key;
  std::string_view english;
  std::string_view korean;
};

using Phrases = std::span<const Phrase>;

// Says the phrases of one table in one language.
class Speaker {
 public:
  Speaker(Phrases phrases, Language language) : phrases_(phrases), language_(language) {}

  template <typename... Args>
  std::string operator()(std::string_view key, const Args&... args) const {
    return fmt::format(fmt::runtime(find(key)), args...);
  }

 private:
  // The format of `key` in the language; an unknown key is an InternalError.
  std::string_view find(std::string_view key) const;

  Phrases phrases_;
  Language language_;
};

// The language of a locale's name: Korean for "ko", "ko_KR.UTF-8"; English for any other.
Language language_of_locale(std::string_view locale);

}  // namespace lockstep::explain
