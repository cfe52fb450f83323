#pragma once

// `model.safetensors.sha256` beside `model.safetensors`: the line that `sha256sum` writes. The way
// to notice a flipped bit in formats that have no checksum.

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "base/byte_source.h"

namespace lockstep::formats {

inline constexpr const char* kSidecarSuffix = ".sha256";

// In pieces, for those who read the bytes anyway.
class Sha256 {
 public:
  Sha256();
  void append(std::span<const std::byte> bytes);
  std::string hex();  // of what was appended; ends it

 private:
  struct Free {
    void operator()(void* context) const;
  };
  std::unique_ptr<void, Free> context_;
};

// The digest in a sidecar, 64 digits in lower case. One line, "DIGEST  NAME" or "DIGEST *NAME",
// whose name is that of `file`, folders aside. Throws FormatError.
std::string read_sidecar(const base::ByteSource& sidecar, const std::string& file);

// Reads all of `source`. Throws FormatError, with both digests, if it is not that of `digest`.
void verify_sidecar(const base::ByteSource& source, const std::string& digest);

}  // namespace lockstep::formats
