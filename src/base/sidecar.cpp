#include "base/sidecar.h"

#include <algorithm>

namespace lockstep::base {

std::optional<Sidecar> parse_sidecar(std::string_view text) {
  constexpr size_t kDigits = 64;
  constexpr size_t kMarkBytes = 2;  // two spaces, or a space and a star
  const std::string_view digits = text.substr(0, text.find_first_of(" \t\r\n"));
  Sidecar sidecar{.digest = std::string(digits)};
  std::transform(digits.begin(), digits.end(), sidecar.digest.begin(), [](char c) {
    return c >= 'A' && c <= 'F' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  if (digits.size() != kDigits ||
      sidecar.digest.find_first_not_of("0123456789abcdef") != std::string::npos) {
    return std::nullopt;
  }
  std::string_view rest = text.substr(kDigits);
  if (rest.ends_with('\n')) {
    rest.remove_suffix(1);
  }
  if ((rest.starts_with("  ") || rest.starts_with(" *")) && rest.find('\n') == rest.npos) {
    sidecar.name = rest.substr(kMarkBytes);
  }
  return sidecar;
}

}  // namespace lockstep::base
