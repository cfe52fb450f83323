#pragma once

// Names from files and peers, which may be hostile, in messages and tables.

#include <string>
#include <string_view>

namespace lockstep::base {

// What is no printable text (control characters, those that change the direction of writing, bytes
// that are not UTF-8) becomes \x1b and the like.
std::string escaped(std::string_view name);

// The same in quotes, cut if long.
std::string shown(std::string_view name);

}  // namespace lockstep::base
