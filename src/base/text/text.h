#pragma once

// Lists of words, and the word that was meant.

#include <string>
#include <string_view>
#include <vector>

namespace lockstep::base {

// The name in `names` closest to `name` by edit distance; empty if none is near enough to suggest.
std::string nearest(const std::string& name, const std::vector<std::string>& names);

// "; did you mean train?", to be put after what is wrong with `name`; empty if no name is near.
// `prefix` stands before the suggestion: "--" for a flag.
std::string did_you_mean(const std::string& name, const std::vector<std::string>& names,
                         std::string_view prefix = "");

// What stands between the separators, empty parts too: "a,,b" -> "a", "", "b". The last part may
// end with a separator, as a line does: "a," -> "a", and nothing -> nothing.
std::vector<std::string> split(std::string_view text, char separator);

// A list in one setting: what stands between commas, without spaces around it and without empty
// parts: "a.bin, b.bin," -> "a.bin", "b.bin".
std::vector<std::string> split_setting(std::string_view text);

}  // namespace lockstep::base
