#pragma once

// `model.safetensors.sha256` beside `model.safetensors`: the line that `sha256sum` writes.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep::base {

inline constexpr const char* kSidecarSuffix = ".sha256";

// A sidecar of `sha256sum` is no longer than its digest and the longest name.
inline constexpr uint64_t kMaxSidecarBytes = 8192;

struct Sidecar {
  std::string digest;               // 64 digits in small letters
  std::optional<std::string> name;  // as written; none unless the text is just one line
                                    // "DIGEST  NAME" or "DIGEST *NAME"
};

// Nothing if `text` does not begin with 64 hexadecimal digits, of which white space or the end of
// the text follows.
std::optional<Sidecar> parse_sidecar(std::string_view text);

}  // namespace lockstep::base
