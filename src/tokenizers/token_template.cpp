#include "tokenizers/token_template.h"

#include <algorithm>
#include <utility>

#include <lockstep/base/error.h>

namespace lockstep::tokenizers {

using What = TokenTemplate::Part::What;

TokenTemplate TokenTemplate::bert(int32_t classifier, int32_t separator) {
  const Part begin{.what = What::Token, .id = classifier};
  const Part end{.what = What::Token, .id = separator};
  const Part second_end{.what = What::Token, .id = separator, .type_id = 1};
  return {.single = {begin, {.what = What::First}, end},
          .pair = {
              begin, {.what = What::First}, end, {.what = What::Second, .type_id = 1}, second_end}};
}

TokenTemplate TokenTemplate::roberta(int32_t classifier, int32_t separator) {
  const Part begin{.what = What::Token, .id = classifier};
  const Part end{.what = What::Token, .id = separator};
  return {.single = {begin, {.what = What::First}, end},
          .pair = {begin, {.what = What::First}, end, end, {.what = What::Second}, end}};
}

Lengths truncated(Lengths lengths, size_t num_special, int64_t max_length) {
  if (max_length < 0 || (max_length > 0 && static_cast<size_t>(max_length) < num_special)) {
    throw UsageError(
        "encode: max_length {} leaves no room: there are {} special tokens; give more, "
        "0 for no limit, or add_special_tokens = false",
        max_length, num_special);
  }
  const size_t room = static_cast<size_t>(max_length) - (max_length > 0 ? num_special : 0);
  if (max_length == 0 || lengths.first + lengths.second <= room) {
    return lengths;
  }
  // The longer one is cut down to the shorter; then both get half, the longer one the odd id.
  size_t& longer = lengths.first > lengths.second ? lengths.first : lengths.second;
  const size_t shorter = std::min(lengths.first, lengths.second);
  if (2 * shorter <= room) {
    longer = room - shorter;
    return lengths;
  }
  const bool first_is_longer = lengths.first > lengths.second;
  const size_t half = room / 2;
  return first_is_longer ? Lengths{half + room % 2, half} : Lengths{half, half + room % 2};
}

Encoding fill(const std::vector<TokenTemplate::Part>& parts, std::span<const int32_t> first,
              std::span<const int32_t> second, const EncodeOptions& options) {
  size_t num_special = 0;
  for (const TokenTemplate::Part& part : parts) {
    num_special += part.what == What::Token && options.add_special_tokens ? 1 : 0;
  }
  const Lengths lengths = truncated({first.size(), second.size()}, num_special, options.max_length);
  Encoding encoding;
  encoding.ids.reserve(lengths.first + lengths.second + num_special);
  for (const TokenTemplate::Part& part : parts) {
    if (part.what == What::Token) {
      if (options.add_special_tokens) {
        encoding.ids.push_back(part.id);
      }
    } else {
      const std::span<const int32_t> ids = part.what == What::First
                                               ? first.subspan(0, lengths.first)
                                               : second.subspan(0, lengths.second);
      encoding.ids.insert(encoding.ids.end(), ids.begin(), ids.end());
    }
    encoding.type_ids.resize(encoding.ids.size(), part.type_id);
  }
  return encoding;
}

}  // namespace lockstep::tokenizers
