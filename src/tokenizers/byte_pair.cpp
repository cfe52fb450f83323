#include "tokenizers/byte_pair.h"

#include <algorithm>
#include <queue>

#include <lockstep/base/error.h>

#include "base/text/utf8.h"
#include "tokenizers/byte_level.h"

namespace lockstep::tokenizers {

namespace {

// Up to so many symbols the smallest rank is searched anew for each merge, which is quadratic.
constexpr size_t kFewSymbols = 128;

std::string place_of(const BytePairSettings& settings, size_t index) {
  const size_t line = settings.merges[index].line;
  return line > 0 ? fmt::format("{}:{}", settings.merges_place, line)
                  : fmt::format("{}: merge {}", settings.merges_place, index);
}

// A word in the making: its symbols in a doubly linked list, so that a merge costs no shift.
struct Link {
  int32_t symbol;
  int32_t before;  // -1: none
  int32_t after;   // -1: none
  bool is_gone;
};

struct Candidate {
  uint32_t rank;
  int32_t at;  // its left symbol
  bool operator>(const Candidate& other) const {
    return rank != other.rank ? rank > other.rank : at > other.at;
  }
};

}  // namespace

BytePair::BytePair(const Vocabulary& vocabulary, const BytePairSettings& settings)
    : normalizer_(settings.normalizer),
      ranks_(settings.merges.size()),
      add_prefix_space_(settings.add_prefix_space),
      has_decoder_(settings.has_decoder) {
  const int32_t unknown =
      settings.unknown.empty() ? -1 : vocabulary.id_of(settings.unknown).value_or(-1);
  for (size_t byte = 0; byte < 256; ++byte) {
    symbol_of_[byte] = vocabulary.id_of(byte_letters()[byte]).value_or(unknown);
  }
  for (size_t i = 0; i < settings.merges.size(); ++i) {
    const Merge& merge = settings.merges[i];
    const auto known = [&](const std::string& token) {
      const auto id = vocabulary.id_of(token);
      if (!id) {
        throw FormatError(
            "{}: the merge of {} and {} needs the token {}, which the vocabulary lacks",
            place_of(settings, i), in_quotes(merge.left), in_quotes(merge.right), in_quotes(token));
      }
      return *id;
    };
    const int32_t left = known(merge.left);
    const int32_t right = known(merge.right);
    if (!ranks_.add(left, right, known(merge.left + merge.right))) {
      throw FormatError("{}: the merge of {} and {} is there twice", place_of(settings, i),
                        in_quotes(merge.left), in_quotes(merge.right));
    }
  }
}

void BytePair::append_ids(std::string_view text, EncodeScratch& scratch) const {
  if (!normalizer_.is_identity()) {
    normalizer_.apply(text, scratch.normalized);
    text = scratch.normalized;
  }
  if (add_prefix_space_ && !text.empty() && text[0] != ' ') {
    scratch.prefixed.assign(1, ' ');
    scratch.prefixed += text;
    text = scratch.prefixed;
  }
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at != end) {
    const char* const begin = at;
    at = end_of_piece(at, end);
    const std::string_view piece(begin, static_cast<size_t>(at - begin));
    if (!scratch.cache.find(piece, scratch.ids)) {
      append_piece(piece, scratch);
    }
  }
}

void BytePair::append_piece(std::string_view piece, EncodeScratch& scratch) const {
  std::vector<MergeSymbol>& symbols = scratch.symbols;
  symbols.clear();
  for (const char c : piece) {
    const int32_t id = symbol_of_[static_cast<unsigned char>(c)];
    if (id >= 0) {
      symbols.push_back({.id = id});
    }
  }
  if (symbols.size() > kFewSymbols) {
    merge_many(symbols);
  } else if (symbols.size() > 1) {
    merge_few(symbols);
  }
  const size_t before = scratch.ids.size();
  for (const MergeSymbol& symbol : symbols) {
    scratch.ids.add(symbol.id);
  }
  scratch.cache.store(piece, scratch.ids.ids().subspan(before));
}

void BytePair::merge_few(std::vector<MergeSymbol>& symbols) const {
  MergeSymbol* const first = symbols.data();
  size_t last = symbols.size() - 1;
  for (size_t i = 0; i < last; ++i) {
    first[i].rank = ranks_.rank(first[i].id, first[i + 1].id);
  }
  first[last].rank = PairRanks::kNone;
  while (true) {
    size_t best = 0;
    uint32_t lowest = first[0].rank;
    for (size_t i = 1; i < last; ++i) {
      if (first[i].rank < lowest) {
        lowest = first[i].rank;
        best = i;
      }
    }
    if (lowest == PairRanks::kNone) {
      break;
    }
    std::copy(first + best + 2, first + last + 1, first + best + 1);
    --last;
    first[best].id = ranks_.merged(lowest);
    first[best].rank =
        best < last ? ranks_.rank(first[best].id, first[best + 1].id) : PairRanks::kNone;
    if (best > 0) {
      first[best - 1].rank = ranks_.rank(first[best - 1].id, first[best].id);
    }
  }
  symbols.resize(last + 1);
}

void BytePair::merge_many(std::vector<MergeSymbol>& symbols) const {
  const auto count = static_cast<int32_t>(symbols.size());
  std::vector<Link> links(symbols.size());
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
  const auto link = [&](int32_t at) -> Link& { return links[static_cast<size_t>(at)]; };
  const auto rank_at = [&](int32_t at) {
    return link(at).after < 0 ? PairRanks::kNone
                              : ranks_.rank(link(at).symbol, link(link(at).after).symbol);
  };
  const auto propose = [&](int32_t at) {
    if (const uint32_t rank = rank_at(at); rank != PairRanks::kNone) {
      queue.push({.rank = rank, .at = at});
    }
  };
  for (int32_t at = 0; at < count; ++at) {
    link(at) = {.symbol = symbols[static_cast<size_t>(at)].id,
                .before = at - 1,
                .after = at + 1 < count ? at + 1 : -1,
                .is_gone = false};
  }
  for (int32_t at = 0; at < count; ++at) {
    propose(at);
  }
  while (!queue.empty()) {
    const auto [rank, at] = queue.top();
    queue.pop();
    if (link(at).is_gone || rank_at(at) != rank) {
      continue;  // one of the two was merged elsewhere meanwhile
    }
    const int32_t gone = link(at).after;
    link(gone).is_gone = true;
    link(at).symbol = ranks_.merged(rank);
    link(at).after = link(gone).after;
    if (link(at).after >= 0) {
      link(link(at).after).before = at;
    }
    if (link(at).before >= 0) {
      propose(link(at).before);
    }
    propose(at);
  }
  symbols.clear();
  for (int32_t at = 0; at >= 0; at = link(at).after) {
    symbols.push_back({.id = link(at).symbol});
  }
}

std::string BytePair::join(const std::vector<std::string_view>& tokens) const {
  if (!has_decoder_) {
    return fmt::format("{}", fmt::join(tokens, " "));
  }
  std::string bytes;
  for (const std::string_view token : tokens) {
    bytes += bytes_of_letters(token).value_or(std::string(token));
  }
  return base::replace_invalid_utf8(bytes);
}

}  // namespace lockstep::tokenizers
