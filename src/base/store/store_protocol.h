#pragma once

// The store's wire format (docs/formats/store.md): frames, and the fields inside them.

#include <cstdint>
#include <string>
#include <string_view>

#include "base/secret.h"

namespace lockstep::base::store {

inline constexpr uint32_t kMagic = 0x54534b4c;  // "LKST"
inline constexpr uint16_t kVersion = 1;
inline constexpr size_t kFrameHeadBytes = 4;  // the length of what follows
inline constexpr size_t kMaxGreetingBytes =
    512;  // of a frame from a peer that has proved nothing yet
inline constexpr size_t kMaxKeyBytes = 4096;
inline constexpr int kToAll = -1;  // a note's receiver: every other member

// What a greeting is bound to, in place of the job id alone: a rank to the start of the job that it
// belongs to, so that a late one of an earlier start stays outside; an agent to its role.
std::string rank_scope(const std::string& job_id, int64_t generation);
std::string agent_scope(const std::string& job_id);

// The group that ranks join to hear what the launcher asks of them: a note "checkpoint" or "stop".
inline constexpr const char* kRequestGroup = "lockstep/requests";

// The key under which ranks name the first of them that gave up: its number. The launcher reads it
// when a rank ends with an error.
inline constexpr const char* kFirstToFailKey = "lockstep/first_to_fail";

// What a frame says. Requests carry an id that the reply repeats; events carry 0.
enum class Kind : uint8_t {
  // greeting
  Hello = 1,      // magic, version, client nonce, scope
  Challenge = 2,  // server nonce, server proof
  Answer = 3,     // client proof
  Welcome = 4,    // i64 the connection's number, i64 milliseconds of silence that make a peer lost
  Refused = 5,    // reason
  Resume = 6,     // i64 number, i64 frames received: this connection goes on where that one broke
  Resumed = 7,    // i64 frames received
  // requests
  Set = 16,          // key, value
  Get = 17,          // key: answered once the key exists
  TryGet = 18,       // key: Value, or None
  Cancel = 19,       // id of a Get that is no longer wanted; no reply
  Add = 20,          // key, i64: Number
  CompareSet = 21,   // key, expected, desired: Value as it is now
  Append = 22,       // key, value
  Erase = 23,        // key: Number of keys erased
  ErasePrefix = 24,  // prefix: Number of keys erased
  Count = 25,        // Number of keys
  Join = 26,         // group, rank, who: this connection is that member
  Leave = 27,        // group, rank: a goodbye
  Note = 28,         // group, from, to, text: no reply
  Agent = 32,        // text: between the head of a job and its agents, in both directions; no reply
  Received = 33,     // i64: so many Agent frames have come; no reply
  // replies
  Done = 64,
  Value = 65,  // text
  None = 66,
  Number = 67,  // i64
  Error = 68,   // text
  // events
  Lost = 96,   // group, rank, who
  Noted = 97,  // group, from, text
};

// One message, as both sides hold it.
struct Message {
  Kind kind = Kind::Done;
  uint64_t id = 0;
  std::string body;  // fields, see Writer and Reader
};

// Length, kind, id, body: ready to be sent.
std::string encode(const Message& message);

// Takes one whole frame off the front of `buffer`. False if it is not all there yet. Throws
// FormatError if the frame claims more than `max_bytes` or is too short to be one.
bool decode(std::string& buffer, size_t max_bytes, Message& message);

// Appends fields, little-endian.
class Writer {
 public:
  Writer& u16(uint16_t value);
  Writer& u32(uint32_t value);
  Writer& i64(int64_t value);
  Writer& text(std::string_view value);          // length, bytes
  Writer& bytes(const void* data, size_t size);  // no length: the reader knows it
  std::string take() { return std::move(buffer_); }

 private:
  std::string buffer_;
};

// Reads them back; throws FormatError where the body is too short.
class Reader {
 public:
  explicit Reader(std::string_view body) : rest_(body) {}

  uint16_t u16();
  uint32_t u32();
  int64_t i64();
  std::string text();
  void bytes(void* data, size_t size);
  void end() const;  // throws FormatError if something is left

 private:
  std::string_view take(size_t size);
  std::string_view rest_;
};

}  // namespace lockstep::base::store
