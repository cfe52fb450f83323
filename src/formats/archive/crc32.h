#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/byte_source.h"

namespace lockstep::formats {

// The CRC-32 of zip, in pieces: crc32(crc32(0, a), b) is that of a and b together.
uint32_t crc32(uint32_t crc, std::span<const std::byte> bytes);

// The same from the CRCs of both: for pieces that were read by different threads or ranks.
uint32_t crc32_combine(uint32_t crc_a, uint32_t crc_b, uint64_t size_b);

// The CRC-32 of a part of a source, which is read through a bounded buffer.
uint32_t crc32_of(const base::ByteSource& source, uint64_t offset, uint64_t size);

}  // namespace lockstep::formats
