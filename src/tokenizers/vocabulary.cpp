#include "tokenizers/vocabulary.h"

#include <lockstep/base/error.h>

#include "base/text/utf8.h"

namespace lockstep::tokenizers {

std::string in_quotes(std::string_view token) {
  constexpr size_t kShown = 40;
  std::string text = "\"";
  for (const char c : token.substr(0, kShown)) {
    const auto byte = static_cast<unsigned char>(c);
    text += byte < 0x20 || byte == 0x7F ? fmt::format("\\x{:02x}", byte) : std::string(1, c);
  }
  return base::replace_invalid_utf8(text) + (token.size() > kShown ? "...\"" : "\"");
}

void Vocabulary::add(std::string_view token, int64_t id, std::string_view place) {
  if (token.size() > kMaxTokenBytes) {
    throw FormatError("{}: the token {} has {} bytes, the limit is {}", place, in_quotes(token),
                      token.size(), kMaxTokenBytes);
  }
  if (const size_t at = base::first_invalid_utf8(token); at != token.size()) {
    throw FormatError("{}: the token {} is not UTF-8 from its byte {} on", place, in_quotes(token),
                      at);
  }
  if (id < 0 || id >= kMaxTokens) {
    throw FormatError("{}: the id {} of the token {} is not in [0, {})", place, id,
                      in_quotes(token), kMaxTokens);
  }
  if (const auto taken = token_of(id)) {
    throw FormatError("{}: the id {} of the token {} is that of {} already", place, id,
                      in_quotes(token), in_quotes(*taken));
  }
  if (const auto taken = id_of(token)) {
    throw FormatError("{}: the token {} is there twice, as {} and as {}; which of them is meant?",
                      place, in_quotes(token), *taken, id);
  }
  const auto index = static_cast<size_t>(id);
  if (index >= token_of_.size()) {
    token_of_.resize(index + 1);
  }
  const std::string& kept = tokens_.emplace_back(token);
  token_of_[index] = &kept;
  id_of_.emplace(kept, static_cast<int32_t>(id));
}

std::optional<int32_t> Vocabulary::id_of(std::string_view token) const {
  const auto found = id_of_.find(token);
  return found == id_of_.end() ? std::nullopt : std::optional(found->second);
}

std::optional<std::string_view> Vocabulary::token_of(int64_t id) const {
  if (id < 0 || id >= size() || token_of_[static_cast<size_t>(id)] == nullptr) {
    return std::nullopt;
  }
  return *token_of_[static_cast<size_t>(id)];
}

}  // namespace lockstep::tokenizers
