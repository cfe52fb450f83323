#include "base/env.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>

#include <lockstep/base/error.h>

namespace lockstep::base {

std::optional<int64_t> parse_integer(const std::string& text, int64_t min, int64_t max) {
  int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || rest != end || value < min || value > max) {
    return std::nullopt;
  }
  return value;
}

Env::Env()
    : lookup_([](const std::string& name) -> std::optional<std::string> {
        const char* value = std::getenv(name.c_str());
        return value == nullptr ? std::nullopt : std::optional<std::string>(value);
      }) {}

std::optional<std::string> Env::text(const std::string& name) const {
  auto value = lookup_(name);
  return value && !value->empty() ? value : std::nullopt;
}

std::optional<int64_t> Env::integer(const std::string& name, int64_t min, int64_t max) const {
  const auto value = text(name);
  if (!value) {
    return std::nullopt;
  }
  const auto number = parse_integer(*value, min, max);
  if (!number) {
    throw UsageError("environment: {}={} is not a whole number from {} to {}", name, *value, min,
                     max);
  }
  return number;
}

std::optional<bool> Env::flag(const std::string& name) const {
  const auto value = text(name);
  if (!value) {
    return std::nullopt;
  }
  std::string lower = *value;
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return std::tolower(c); });
  if (lower == "1" || lower == "true" || lower == "yes" || lower == "on") {
    return true;
  }
  if (lower == "0" || lower == "false" || lower == "no" || lower == "off") {
    return false;
  }
  throw UsageError("environment: {}={} is neither yes nor no; use 1 or 0", name, *value);
}

}  // namespace lockstep::base
