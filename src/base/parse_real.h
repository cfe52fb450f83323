#pragma once

#include <charconv>
#include <optional>
#include <string>

namespace lockstep::base {

// A number as fmt's "{}" writes it, or in hexadecimal, and nothing else around it; nothing if it is
// not that. Its point is a point, whatever the program's locale says, to which strtod() and fmt's
// "{:a}" listen.
inline std::optional<double> parse_real(const std::string& text) {
  const bool is_negative = text.starts_with('-');
  const size_t sign = is_negative ? 1 : 0;
  const bool is_hex = text.compare(sign, 2, "0x") == 0;
  const char* const begin = text.data() + sign + (is_hex ? 2 : 0);
  const char* const end = text.data() + text.size();
  double value = 0;
  const auto [rest, error] = std::from_chars(
      begin, end, value, is_hex ? std::chars_format::hex : std::chars_format::general);
  if (error != std::errc() || rest != end || begin[0] == '-') {
    return std::nullopt;
  }
  return is_negative ? -value : value;
}

}  // namespace lockstep::base
