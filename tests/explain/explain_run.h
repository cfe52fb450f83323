#pragma once

// Runs `lockstep explain` as a user does.

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/process/process.h"

namespace lockstep {

// What `lockstep explain ARGUMENTS` wrote, and how it ended. Run once per process for the same
// arguments: starting four ranks costs about a second.
const base::Output& explain(const std::vector<std::string>& arguments);

// Its JSON; the run must have succeeded and have written nothing else.
nlohmann::json explain_json(std::vector<std::string> arguments);

}  // namespace lockstep
