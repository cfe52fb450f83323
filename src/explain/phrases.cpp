#include "explain/phrases.h"

#include <algorithm>

#include <lockstep/base/error.h>

namespace lockstep::explain {

std::string_view Speaker::find(std::string_view key) const {
  const auto found = std::find_if(phrases_.begin(), phrases_.end(),
                                  [&](const Phrase& phrase) { return phrase.key == key; });
  LOCKSTEP_CHECK(found != phrases_.end(), "no phrase is called \"{}\"", key);
  return language_ == Language::Korean ? found->korean : found->english;
}

Language language_of_locale(std::string_view locale) {
  const std::string_view language = locale.substr(0, locale.find_first_of("_.@"));
  return language == "ko" ? Language::Korean : Language::English;
}

}  // namespace lockstep::explain
