#include "bench/flags.h"

#include <cctype>
#include <cmath>
#include <cstdlib>
#include <map>
#include <optional>
#include <string>

#include <fmt/format.h>

namespace lockstep::app {

namespace {

std::optional<double> parse_size(const std::string& text) {
  static const std::map<std::string, double> kUnits = {
      {"", 1},        {"B", 1},         {"K", 1 << 10}, {"KIB", 1 << 10},
      {"M", 1 << 20}, {"MIB", 1 << 20}, {"G", 1 << 30}, {"GIB", 1 << 30},
      {"KB", 1e3},    {"MB", 1e6},      {"GB", 1e9}};
  const size_t end = text.find_first_not_of("0123456789.");
  const std::string digits = text.substr(0, end);
  std::string unit = end == std::string::npos ? "" : text.substr(end);
  for (char& letter : unit) {
    letter = static_cast<char>(std::toupper(static_cast<unsigned char>(letter)));
  }
  char* rest = nullptr;
  const double number = std::strtod(digits.c_str(), &rest);
  const auto factor = kUnits.find(unit);
  if (digits.empty() || *rest != '\0' || factor == kUnits.end()) {
    return std::nullopt;
  }
  return number * factor->second;
}

// 1M, 64GB or 12345: as the user would write it.
std::string shown_size(int64_t bytes) {
  for (const auto& [factor, unit] : {std::pair{int64_t{1} << 30, "G"},
                                     {int64_t{1} << 20, "M"},
                                     {int64_t{1'000'000'000}, "GB"},
                                     {int64_t{1'000'000}, "MB"}}) {
    if (bytes % factor == 0) {
      return fmt::format("{}{}", bytes / factor, unit);
    }
  }
  return std::to_string(bytes);
}

}  // namespace

CLI::Validator size_in(int64_t min, int64_t max) {
  return {[min, max](std::string& text) {
            const auto bytes = parse_size(text);
            if (!bytes || *bytes < static_cast<double>(min) || *bytes > static_cast<double>(max)) {
              return fmt::format(
                  "\"{}\" is not a size from {} to {}; write 4096, 4K or 25M (powers of 1024), or "
                  "64MB or 1.5GB (powers of 1000)",
                  text, shown_size(min), shown_size(max));
            }
            text = std::to_string(std::llround(*bytes));
            return std::string();
          },
          fmt::format("{} to {}", shown_size(min), shown_size(max))};
}

void show_defaults(CLI::App& app) {
  app.option_defaults()->always_capture_default();
}

void add_json_flag(CLI::App& app, bool& json) {
  app.add_flag("--json", json, "Print one JSON object, raw times included, and nothing else");
}

}  // namespace lockstep::app
