#pragma once

// JSON from files that may be hostile.

#include <string>

#include <nlohmann/json_fwd.hpp>

namespace lockstep::base {

// Throws FormatError, which begins with `file` and where it can with the line, if `text` is not one
// value of JSON in UTF-8, is nested deeper than 32, has a key twice in an object (other
// readers take the last one silently) or a number that no type holds.
nlohmann::json parse_strict_json(const std::string& file, const std::string& text);

}  // namespace lockstep::base
