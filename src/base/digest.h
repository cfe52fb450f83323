#pragma once

// SHA-256, and the MD5 that an ETag is: a protection against a damaged transfer, not against an
// attacker. For hashes that only find mistakes, and faster, see base/hash.h.

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/byte_source.h"

namespace lockstep::base {

// Of bytes that come piece by piece.
class Digest {
 public:
  // Throw IoError if OpenSSL does not offer the algorithm (a FIPS policy may forbid MD5).
  static Digest md5() { return Digest("MD5"); }
  static Digest sha256() { return Digest("SHA256"); }

  void add(std::span<const std::byte> bytes);
  void add(std::string_view text) { add(std::as_bytes(std::span(text))); }

  // In small letters. Called once, at the end.
  std::string hex();

 private:
  explicit Digest(const char* algorithm);

  struct Free {
    void operator()(void* context) const;
  };
  std::unique_ptr<void, Free> context_;
};

std::string md5_hex(std::span<const std::byte> bytes);
std::string sha256_hex(std::span<const std::byte> bytes);
std::string sha256_hex(std::string_view text);

// Reads all of the source, through a bounded buffer.
std::string sha256_of(const ByteSource& source);

}  // namespace lockstep::base
