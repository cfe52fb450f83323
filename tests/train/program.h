#pragma once

// `lockstep` as a user types it, to its end.

#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/process/process.h"

namespace lockstep::test {

using Arguments = std::vector<std::string>;

// `lockstep ARGV`, typed in that folder.
base::Output run_in(const std::string& folder, Arguments argv);

// What it prints with --json; a failure of the test if it is not well.
nlohmann::json answer_in(const std::string& folder, const Arguments& argv);

Arguments with(Arguments first, const Arguments& more);

// Why the published BERT that `make setup` brings cannot be had, if it cannot.
std::optional<std::string> no_minilm();

}  // namespace lockstep::test
