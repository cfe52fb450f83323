#pragma once

// Hashes that find mistakes: a flipped bit, another name, a rank that differs. They do not
// withstand an attacker; base/digest.h has the ones that do.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace lockstep::base {

// FNV-1a of 64 bits (Fowler, Noll and Vo): for short keys, and for values that are published and
// that a reader computes again in a few lines of any language. It takes one multiplication per
// byte, each of which waits for the one before; xxh3() is many times as fast.
class Fnv1a {
 public:
  static constexpr uint64_t kStart = 0xcbf29ce484222325u;

  constexpr explicit Fnv1a(uint64_t start = kStart) : value_(start) {}

  void add(std::span<const std::byte> bytes) {
    for (const std::byte byte : bytes) {
      add_byte(static_cast<uint8_t>(byte));
    }
  }
  constexpr void add(std::string_view text) {
    for (const char letter : text) {
      add_byte(static_cast<uint8_t>(letter));
    }
  }
  // As the eight bytes of a little-endian number.
  constexpr void add(uint64_t number) {
    for (int shift = 0; shift < 64; shift += 8) {
      add_byte(static_cast<uint8_t>(number >> shift));
    }
  }

  constexpr uint64_t value() const { return value_; }

 private:
  constexpr void add_byte(uint8_t byte) { value_ = (value_ ^ byte) * 0x100000001b3u; }

  uint64_t value_;
};

// FNV-1a of 32 bits.
constexpr uint32_t fnv1a_32(std::string_view text) {
  uint32_t hash = 2166136261u;
  for (const char letter : text) {
    hash = (hash ^ static_cast<uint8_t>(letter)) * 16777619u;
  }
  return hash;
}

// XXH3 of 64 bits, with the widest vectors that the processor has.
uint64_t xxh3(std::span<const std::byte> bytes);

// XXH3 of 128 bits, of bytes that come one after another.
class Xxh3 {
 public:
  Xxh3();
  void add(std::span<const std::byte> bytes);
  void add(std::string_view text) { add(std::as_bytes(std::span(text))); }

  // 32 hexadecimal digits in small letters, the high half first: of what was added so far.
  std::string hex() const;

 private:
  struct Free {
    void operator()(void* state) const;
  };
  std::unique_ptr<void, Free> state_;
};

// Xxh3::hex() of one text.
std::string xxh3_hex(std::string_view text);

}  // namespace lockstep::base
