#include "tokenizers/added_tokens.h"

#include <utility>

#include "base/text/utf8.h"

namespace lockstep::tokenizers {

namespace {

bool is_class(char32_t point, uint8_t classes) {
  return (Unicode::get().classes(point) & classes) != 0;
}

bool begins_with_word(std::string_view text) {
  const char* at = text.data();
  return !text.empty() && is_class(base::next_code_point(at), kWordCharacter);
}

bool ends_with_word(std::string_view text) {
  return !text.empty() && is_class(base::last_code_point(text), kWordCharacter);
}

size_t bytes_of_space_at_end(std::string_view text) {
  const size_t whole = text.size();
  while (!text.empty() && is_class(base::last_code_point(text), kSpace)) {
    std::string bytes;
    base::append_utf8(bytes, base::last_code_point(text));
    text.remove_suffix(bytes.size());
  }
  return whole - text.size();
}

size_t bytes_of_space_at_begin(std::string_view text) {
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at != end) {
    const char* next = at;
    if (!is_class(base::next_code_point(next), kSpace)) {
      break;
    }
    at = next;
  }
  return static_cast<size_t>(at - text.data());
}

}  // namespace

AddedTokens::AddedTokens(std::vector<AddedToken> tokens, const TextNormalizer& normalizer)
    : tokens_(std::move(tokens)) {
  for (size_t i = 0; i < tokens_.size(); ++i) {
    const AddedToken& token = tokens_[i];
    std::string pattern = token.content;
    has_normalized_ |= token.normalized;
    if (token.normalized && !normalizer.is_identity()) {
      normalizer.apply(token.content, pattern);
      shown_.emplace(token.id, pattern);
    }
    (token.normalized ? normalized_ : plain_).insert(pattern, static_cast<int32_t>(i));
    if (token.special) {
      special_.insert(token.content);
    }
  }
}

std::string_view AddedTokens::shown(int32_t id, std::string_view token) const {
  const auto found = shown_.find(id);
  return found == shown_.end() ? token : found->second;
}

void AddedTokens::split(std::string_view text, bool normalized, std::vector<Piece>& pieces) const {
  const TokenTrie& trie = normalized ? normalized_ : plain_;
  size_t begin = 0;  // of what no token has taken yet
  size_t at = 0;
  while (at < text.size() && !trie.is_empty()) {
    if (!trie.has_first(static_cast<unsigned char>(text[at]))) {
      ++at;
      continue;
    }
    const TokenTrie::Match match = trie.longest(text.substr(at));
    if (match.id < 0) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[static_cast<size_t>(match.id)];
    size_t first = at;
    size_t last = at + match.bytes;
    at = last;
    if (token.single_word &&
        (ends_with_word(text.substr(0, first)) || begins_with_word(text.substr(last)))) {
      continue;
    }
    if (token.lstrip && begin < first) {
      first -= bytes_of_space_at_end(text.substr(begin, first - begin));
    }
    if (token.rstrip) {
      last += bytes_of_space_at_begin(text.substr(last));
    }
    if (begin < first) {
      pieces.push_back({.text = text.substr(begin, first - begin)});
    }
    pieces.push_back({.text = text.substr(first, last - first), .id = token.id});
    begin = last;
  }
  if (begin < text.size()) {
    pieces.push_back({.text = text.substr(begin)});
  }
}

}  // namespace lockstep::tokenizers
