#pragma once

// A ring of bytes from one rank to another: one writes, one reads. Messages go through it as a
// header and their bytes, in pieces if they are larger than the ring.

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace lockstep::shm {

// Lies in shared memory, zero at the start; `capacity` bytes follow it.
class Mailbox {
 public:
  // What one mailbox takes in the arena of a rank of `size` ranks: less when there are many.
  static size_t bytes_for(int size);

  // Copies up to `bytes`, as many as there is room for; returns how many. By the sender only.
  size_t write(const void* data, size_t bytes, size_t capacity);
  // Copies up to `bytes`, as many as there are; returns how many. By the receiver only.
  size_t read(void* data, size_t bytes, size_t capacity);
  // Bytes ever written, and ever read.
  uint64_t written() const { return written_.load(); }
  uint64_t read() const { return read_.load(); }

 private:
  std::byte* ring() { return reinterpret_cast<std::byte*>(this + 1); }

  alignas(128) std::atomic<uint64_t> written_;  // bytes ever; by the sender
  alignas(128) std::atomic<uint64_t> read_;     // bytes ever; by the receiver
};

inline constexpr size_t kMailboxHeaderBytes = sizeof(Mailbox);

}  // namespace lockstep::shm
