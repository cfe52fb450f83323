#pragma once

// The digest beside a file of weights (base/sidecar.h): the way to notice a flipped bit in formats
// that have no checksum.

#include <string>

#include "base/byte_source.h"
#include "base/sidecar.h"

namespace lockstep::formats {

// The digest in a sidecar, which must be one line of sha256sum whose name is that of `file`,
// folders aside. Throws FormatError.
std::string read_sidecar(const base::ByteSource& sidecar, const std::string& file);

// Reads all of `source`. Throws FormatError, with both digests, if it is not that of `digest`.
void verify_sidecar(const base::ByteSource& source, const std::string& digest);

}  // namespace lockstep::formats
