#pragma once

// How wide a text is on a terminal, which is neither its bytes nor its characters.

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::explain {

// Columns that `utf8` takes: 2 for Hangul, other East Asian wide characters and pictographs, 0 for
// combining marks, 1 for the rest and for each byte that is not UTF-8.
size_t display_width(std::string_view utf8);

// Breaks at spaces into lines of at most `columns`; a longer word gets a line of its own.
std::vector<std::string> wrap(std::string_view utf8, size_t columns);

}  // namespace lockstep::explain
