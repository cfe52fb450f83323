#pragma once

// What a lesson hands back: steps to read and the same facts as data.

#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "explain/table.h"

namespace lockstep::explain {

struct Step {
  std::string sentence;
  std::optional<Table> table;
};

struct Report {
  std::string title;
  std::vector<Step> steps;
  nlohmann::ordered_json data;  // the same whatever the language
};

// The title and the numbered steps, wrapped at 88 columns.
std::string render_text(const Report& report);

// The data, indented, with its short lists of numbers on one line each.
std::string render_json(const Report& report);

}  // namespace lockstep::explain
