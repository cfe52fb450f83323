#pragma once

// Environment variables, read with their mistakes named.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace lockstep::base {

// Reads variables from the process or, in tests, from a map. An empty value counts as unset.
class Env {
 public:
  using Lookup = std::function<std::optional<std::string>(const std::string& name)>;

  // The process's own environment.
  Env();
  explicit Env(Lookup lookup) : lookup_(std::move(lookup)) {}

  std::optional<std::string> text(const std::string& name) const;

  // Throws UsageError, naming the variable and the value, unless it is a whole number in [min,
  // max].
  std::optional<int64_t> integer(const std::string& name, int64_t min, int64_t max) const;

  // 1/0, true/false, yes/no, on/off in any case; throws UsageError otherwise.
  std::optional<bool> flag(const std::string& name) const;

  bool has(const std::string& name) const { return text(name).has_value(); }

 private:
  Lookup lookup_;
};

// A whole number in [min, max] and nothing else around it; nothing if it is not that.
std::optional<int64_t> parse_integer(const std::string& text, int64_t min, int64_t max);

}  // namespace lockstep::base
