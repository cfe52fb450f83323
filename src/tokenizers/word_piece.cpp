#include "tokenizers/word_piece.h"

#include <utility>

#include <lockstep/base/error.h>

#include "base/text/utf8.h"
#include "tokenizers/bert_words.h"

namespace lockstep::tokenizers {

namespace {

unsigned char byte_at(const char* at) {
  return static_cast<unsigned char>(*at);
}

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
}

// Does what Hugging Face's decoder does, token by token, with the blank that comes first.
void clean_up(std::string& token) {
  constexpr std::pair<std::string_view, std::string_view> kRules[] = {
      {" .", "."},   {" ?", "?"},     {" !", "!"},     {" ,", ","},
      {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},   {" do not", " don't"},
      {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"},
  };
  for (const auto& [from, to] : kRules) {
    replace_all(token, from, to);
  }
}

}  // namespace

WordPiece::WordPiece(const Vocabulary& vocabulary, WordPieceSettings settings,
                     std::string_view place)
    : settings_(std::move(settings)),
      cuts_chinese_(settings_.normalizer.has(TextNormalizer::Step::SpaceChinese)),
      composes_(settings_.normalizer.has(TextNormalizer::Step::Compose)) {
  const auto unknown = vocabulary.id_of(settings_.unknown);
  if (!unknown) {
    throw FormatError("{}: the vocabulary lacks {}, the token of unknown words", place,
                      in_quotes(settings_.unknown));
  }
  unknown_ = *unknown;
  vocabulary.for_each([&](std::string_view token, int32_t id) {
    beginnings_.insert(token, id);
    if (token.starts_with(settings_.continuation)) {
      continuations_.insert(token.substr(settings_.continuation.size()), id);
    }
  });
  set_roles();
}

// The normalizer may only be asked about parts that it treats as it would inside the whole text:
// all of its steps do between blanks, and all but composing do between code points that stand
// alone.
void WordPiece::set_roles() {
  const Unicode& unicode = Unicode::get();
  roles_.fill(Role::High);
  for (unsigned char byte = 0; byte < 128; ++byte) {
    const bool is_blank = byte == ' ' || byte == '\t' || byte == '\n' || byte == '\r';
    const bool is_alone = !composes_ && (unicode.classes(byte) & kPunctuation) != 0;
    roles_[byte] = is_blank ? Role::Break : is_alone ? Role::Alone : Role::Part;
    IdList ids;
    const char text = static_cast<char>(byte);
    append_word({&text, 1}, ids);
    alone_id_[byte] = ids.ids()[0];
  }
}

bool WordPiece::stands_alone(char32_t point) const {
  const Unicode& unicode = Unicode::get();
  const uint8_t classes = unicode.classes(point);
  // A control character is dropped, and what stood around it becomes one word.
  return !composes_ && (classes & kControl) == 0 &&
         ((classes & (kPunctuation | kSpace)) != 0 || (cuts_chinese_ && unicode.is_chinese(point)));
}

void WordPiece::append_ids(std::string_view text, EncodeScratch& scratch) const {
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at != end) {
    const Role role = roles_[byte_at(at)];
    if (role == Role::Break) {
      ++at;
    } else if (role == Role::Alone) {
      scratch.ids.add(alone_id_[byte_at(at++)]);
    } else {
      const char* const begin = at;
      at = end_of_part(at, end);
      const std::string_view part(begin, static_cast<size_t>(at - begin));
      if (!scratch.cache.find(part, scratch.ids)) {
        append_part(part, scratch);
      }
    }
  }
}

// Where the part that begins at `at` ends. It is a code point that stands alone, or all code points
// up to the next such one.
const char* WordPiece::end_of_part(const char* at, const char* end) const {
  const char* const begin = at;
  while (at != end) {
    const Role role = roles_[byte_at(at)];
    if (role == Role::Part) {
      ++at;
    } else if (role == Role::High) {
      const char* next = at;
      if (stands_alone(base::next_code_point(next))) {
        return at == begin ? next : at;
      }
      at = next;
    } else {
      break;
    }
  }
  return at;
}

void WordPiece::append_part(std::string_view part, EncodeScratch& scratch) const {
  const size_t before = scratch.ids.size();
  std::string_view normalized = part;
  if (!settings_.normalizer.is_identity()) {
    settings_.normalizer.apply(part, scratch.normalized);
    normalized = scratch.normalized;
  }
  for_each_bert_word(normalized, [&](std::string_view word) { append_word(word, scratch.ids); });
  scratch.cache.store(part, scratch.ids.ids().subspan(before));
}

void WordPiece::append_word(std::string_view word, IdList& ids) const {
  const size_t before = ids.size();
  bool is_known = word.size() <= settings_.max_word_points ||
                  base::count_code_points(word) <= settings_.max_word_points;
  const TokenTrie* trie = &beginnings_;
  while (is_known && !word.empty()) {
    const TokenTrie::Match match = trie->longest(word);
    is_known = match.id >= 0;
    if (is_known) {
      ids.add(match.id);
      word.remove_prefix(match.bytes);
      trie = &continuations_;
    }
  }
  if (!is_known) {
    ids.cut(before);
    ids.add(unknown_);
  }
}

std::string WordPiece::join(const std::vector<std::string_view>& tokens) const {
  std::string text;
  for (size_t i = 0; i < tokens.size(); ++i) {
    std::string token(tokens[i]);
    if (i > 0) {
      if (settings_.has_decoder && token.starts_with(settings_.decoder_prefix)) {
        token.erase(0, settings_.decoder_prefix.size());
      } else {
        token.insert(0, 1, ' ');
      }
    }
    if (settings_.has_decoder && settings_.cleans_decoded) {
      clean_up(token);
    }
    text += token;
  }
  return text;
}

}  // namespace lockstep::tokenizers
