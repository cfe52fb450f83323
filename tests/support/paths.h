#pragma once

// Where the source tree and the built programs are. Only paths.cpp is compiled with these paths, so
// that ccache finds what another clone compiled of all other files.

#include <string>
#include <string_view>

namespace lockstep::testing_support {

// in_tree("recipes/cats.toml"): a file of the source tree; in_tree("") is the tree itself.
std::string in_tree(std::string_view path);

// in_build("lockstep"): a program of this build.
std::string in_build(std::string_view name);

}  // namespace lockstep::testing_support
