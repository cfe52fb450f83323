#pragma once

// Reading a sub-command's flags, on top of CLI11: both spellings of every flag, and one-sentence
// errors.

#include <cstdint>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace lockstep::app {

using Names = std::vector<std::string>;

struct SplitArguments {
  std::vector<std::string> flags;  // ours, with dashes: --nproc_per_node is --nproc-per-node
  std::vector<std::string>
      command;  // the first argument that is no flag, or what follows "--", and the rest
};

// Cuts `arguments` where the program to run begins; what follows is never looked at. Throws
// UsageError for a flag that `app` does not have, naming the nearest.
SplitArguments split_arguments(const CLI::App& app, const std::vector<std::string>& arguments);

// Parses flags into what `app` is bound to. False if it was --help, which is then printed. Throws
// UsageError.
bool parse_flags(CLI::App& app, std::vector<std::string> flags);

// Both, for a sub-command that takes nothing but flags: a word that is none is a UsageError.
bool parse_only_flags(CLI::App& app, const std::vector<std::string>& arguments);

// "a, b or c".
std::string joined(const Names& names);

// Throws UsageError, with the names, if `value` is none of them.
void check_one_of(const std::string& flag, const std::string& value, const Names& names);

}  // namespace lockstep::app
