#pragma once

// numpy.savez_compressed. A tensor here is a place in a file, and a deflated array has none: the
// archive is inflated into memory, where it stands as numpy.savez would have written it.

#include <cstdint>
#include <memory>

#include "base/byte_source.h"

namespace lockstep::formats {

struct InflateLimits {
  uint64_t total_bytes = uint64_t{4} << 30;  // of all arrays of an archive
};

// `source` itself, unless it is a .npz with deflated records: then memory that holds the archive
// with stored ones. Before an array is inflated its size must be one that deflate can reach, and
// afterwards its CRC-32 and the size that its .npy header says are compared. Throws FormatError.
std::unique_ptr<base::ByteSource> inflate_npz(std::unique_ptr<base::ByteSource> source,
                                              const InflateLimits& limits = {});

}  // namespace lockstep::formats
