#include "shm/mailbox.h"

#include <algorithm>
#include <cstring>

namespace lockstep::shm {

size_t Mailbox::bytes_for(int size) {
  constexpr int kFewRanks = 8;
  constexpr int kSomeRanks = 32;
  const size_t capacity = size <= kFewRanks ? 64 << 10 : size <= kSomeRanks ? 16 << 10 : 4 << 10;
  return sizeof(Mailbox) + capacity;
}

size_t Mailbox::write(const void* data, size_t bytes, size_t capacity) {
  // The sender's own count needs no order; read_ pairs with its store in read(): what was there has
  // been copied out.
  const uint64_t written = written_.load(std::memory_order_relaxed);
  const size_t room = capacity - static_cast<size_t>(written - read_.load());
  const size_t length = std::min(bytes, room);
  if (length == 0) {
    return 0;  // `data` may be null
  }
  const size_t at = written % capacity;
  const size_t until_end = std::min(length, capacity - at);
  const auto* source = static_cast<const std::byte*>(data);
  std::memcpy(ring() + at, source, until_end);
  std::memcpy(ring(), source + until_end, length - until_end);
  written_.store(written + length);
  return length;
}

size_t Mailbox::read(void* data, size_t bytes, size_t capacity) {
  const uint64_t read = read_.load(std::memory_order_relaxed);  // the receiver's own
  const size_t length = std::min(bytes, static_cast<size_t>(written_.load() - read));
  if (length == 0) {
    return 0;
  }
  const size_t at = read % capacity;
  const size_t until_end = std::min(length, capacity - at);
  auto* destination = static_cast<std::byte*>(data);
  std::memcpy(destination, ring() + at, until_end);
  std::memcpy(destination + until_end, ring(), length - until_end);
  read_.store(read + length);
  return length;
}

}  // namespace lockstep::shm
