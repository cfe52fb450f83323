#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace lockstep::storage {

// MD5 or SHA-256 of bytes that come piece by piece. MD5 is what an ETag is: no protection against
// anyone, but against a damaged transfer.
class Digest {
 public:
  static Digest md5() { return Digest("MD5"); }
  static Digest sha256() { return Digest("SHA256"); }

  void add(std::span<const std::byte> bytes);
  std::string hex();  // once, at the end

 private:
  explicit Digest(const char* algorithm);

  struct Free {
    void operator()(void* context) const;
  };
  std::unique_ptr<void, Free> context_;
};

std::string md5_hex(std::span<const std::byte> bytes);
std::string sha256_hex(std::span<const std::byte> bytes);

}  // namespace lockstep::storage
