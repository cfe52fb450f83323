#pragma once

// Addresses as S3's signature wants them: every letter but the plainest as %XX, queries sorted.

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::storage {

using Query = std::vector<std::pair<std::string, std::string>>;

// "a b/c" -> "a%20b%2Fc"; a path keeps its slashes.
std::string percent_encoded(std::string_view text, bool is_path = false);

// "a=1&b=": encoded, then sorted, as libcurl 7.88 signs a query in the order in which it is given.
// A name without a value keeps its "=", which the signature has too.
std::string query_text(const Query& query);

}  // namespace lockstep::storage
