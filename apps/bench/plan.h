#pragma once

// How `lockstep` hands the ranks what it has read from the command line: as one JSON text, in which
// every member of a plan has its own name. Each topic's plan header names the members once.

#include <string>

#include <nlohmann/json.hpp>

#include <lockstep/base/error.h>

namespace lockstep {

template <typename Plan>
std::string plan_text(const Plan& plan) {
  return nlohmann::json(plan).dump();
}

// Throws UsageError if `text` is not what `command` writes.
template <typename Plan>
Plan read_plan(const std::string& text, const char* command) {
  try {
    return nlohmann::json::parse(text).get<Plan>();
  } catch (const nlohmann::json::exception& error) {
    throw UsageError("the ranks were given no plan ({}); start them with `{}`", error.what(),
                     command);
  }
}

}  // namespace lockstep
