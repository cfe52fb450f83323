#pragma once

// GPU facts as JSON: from the process that asks the driver to the one that judges, and in
// `lockstep doctor --json`.

#include <string>

#include <nlohmann/json.hpp>

#include "doctor/gpu_facts.h"

namespace lockstep::doctor {

std::string to_json(const GpuFacts& facts);

// Throws FormatError if it is none.
GpuFacts facts_from_json(const std::string& text);

// For users: docs/concepts/doctor.md. What is unknown is null.
nlohmann::ordered_json devices_json(const GpuFacts& facts);

}  // namespace lockstep::doctor
