#include "base/store/store_protocol.h"

#include <bit>
#include <cstring>

#include <lockstep/base/error.h>

namespace lockstep::base::store {
namespace {

static_assert(std::endian::native == std::endian::little,
              "the wire format is the memory of such machines");

constexpr size_t kBodyOffset = 1 + 8;  // kind and id

}  // namespace

std::string rank_scope(const std::string& job_id, int64_t generation) {
  return fmt::format("{}/g{}", job_id, generation);
}

std::string agent_scope(const std::string& job_id) {
  return job_id + "/agents";
}

std::string encode(const Message& message) {
  Writer frame;
  const auto kind = static_cast<uint8_t>(message.kind);
  frame.u32(static_cast<uint32_t>(kBodyOffset + message.body.size()))
      .bytes(&kind, sizeof kind)
      .bytes(&message.id, sizeof message.id)
      .bytes(message.body.data(), message.body.size());
  return frame.take();
}

bool decode(std::string& buffer, size_t max_bytes, Message& message) {
  if (buffer.size() < kFrameHeadBytes) {
    return false;
  }
  uint32_t size = 0;
  std::memcpy(&size, buffer.data(), sizeof size);
  if (size < kBodyOffset || size > max_bytes) {
    throw FormatError("store: a frame of {} bytes, allowed are {} to {}", size, kBodyOffset,
                      max_bytes);
  }
  if (buffer.size() < kFrameHeadBytes + size) {
    return false;
  }
  message.kind = static_cast<Kind>(static_cast<uint8_t>(buffer[kFrameHeadBytes]));
  std::memcpy(&message.id, buffer.data() + kFrameHeadBytes + 1, sizeof message.id);
  message.body.assign(buffer, kFrameHeadBytes + kBodyOffset, size - kBodyOffset);
  buffer.erase(0, kFrameHeadBytes + size);
  return true;
}

Writer& Writer::bytes(const void* data, size_t size) {
  buffer_.append(static_cast<const char*>(data), size);
  return *this;
}
Writer& Writer::u16(uint16_t value) {
  return bytes(&value, sizeof value);
}
Writer& Writer::u32(uint32_t value) {
  return bytes(&value, sizeof value);
}
Writer& Writer::i64(int64_t value) {
  return bytes(&value, sizeof value);
}
Writer& Writer::text(std::string_view value) {
  return u32(static_cast<uint32_t>(value.size())).bytes(value.data(), value.size());
}

std::string_view Reader::take(size_t size) {
  if (size > rest_.size()) {
    throw FormatError("store: a message ends {} bytes too early", size - rest_.size());
  }
  const std::string_view part = rest_.substr(0, size);
  rest_.remove_prefix(size);
  return part;
}

void Reader::bytes(void* data, size_t size) {
  std::memcpy(data, take(size).data(), size);
}

uint16_t Reader::u16() {
  uint16_t value = 0;
  bytes(&value, sizeof value);
  return value;
}

uint32_t Reader::u32() {
  uint32_t value = 0;
  bytes(&value, sizeof value);
  return value;
}

int64_t Reader::i64() {
  int64_t value = 0;
  bytes(&value, sizeof value);
  return value;
}

std::string Reader::text() {
  const uint32_t size = u32();
  return std::string(take(size));
}

void Reader::end() const {
  if (!rest_.empty()) {
    throw FormatError("store: a message has {} bytes too many", rest_.size());
  }
}

}  // namespace lockstep::base::store
