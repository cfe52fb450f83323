#pragma once

// What each rank of a team has in shared memory for itself: its announcements, its slots for data
// from ordinary memory, and its inboxes for messages. Rank 0's arena also holds the protocol's
// words.

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/process/cpu_quota.h"
#include "shm/mailbox.h"
#include "shm/platform.h"
#include "shm/protocol.h"
#include "shm/types.h"

namespace lockstep::shm {

// Bind: the synchronisation before ranks hand each other a buffer.
enum class Kind : uint8_t {
  AllReduce,
  Broadcast,
  AllGather,
  ReduceScatter,
  AllToAll,
  Barrier,
  Bind
};

// Where a rank's data lies: in bound buffer number `buffer`, or in slots if that is 0.
struct Location {
  uint32_t buffer = 0;
  uint64_t offset = 0;
};

// What the ranks of an operation must agree on, as the caller sees it.
struct CallId {
  Kind kind = Kind::Barrier;
  DataType type = DataType::UInt8;
  Reduction reduction = Reduction::Sum;
  int32_t root = 0;
  uint64_t count = 0;
  bool on_device = false;  // tensors of a device come in pieces of their own sizes
  int64_t sequence = 0;    // equal calls must not be taken for each other, after one has failed

  bool agrees_with(const CallId& other) const {
    return kind == other.kind && type == other.type && reduction == other.reduction &&
           root == other.root && count == other.count && on_device == other.on_device &&
           sequence == other.sequence;
  }
};

// A rank's call, for the others to see. Written by its rank before it arrives; read by the last one
// to arrive and, after the gate has opened, by all; once it is staged, by its sibling too.
struct alignas(kLineBytes) Announcement {
  CallId call;
  Location location;
  int32_t core = 0;     // where it ran
  bool joined = false;  // its data is in its sibling's slot, added to that one's (Team::join)
  std::atomic<uint64_t> shown{0};  // the operation, once all of the above is there (own cores only)
};

// How far a rank is in an operation, where every rank has a core of its own.
enum class Phase : uint8_t { Staged, Reduced, Done };
inline constexpr size_t kNumPhases = 3;

inline constexpr int kMaxCores = 1024;  // higher ones are not counted

struct alignas(kLineBytes) RankStatus {
  std::atomic<uint64_t> entered;   // the last operation this rank has come to
  std::atomic<uint64_t> staged;    // the last one for which its input is in its slot
  std::atomic<uint32_t> departed;  // 1: it comes to no other
  alignas(kLineBytes) std::atomic<uint32_t> message_bell;  // rung when its messages may move on
  Mark<Platform> marks[kNumPhases];
  // The cores that this rank may use, a bit for each; written before it first arrives.
  alignas(kLineBytes) uint64_t cores[kMaxCores / 64];
  base::CpuQuota quota;  // likewise
};

inline constexpr size_t kSlotBytes = 1 << 20;
inline constexpr size_t kChunkBytes = 256 << 10;
inline constexpr size_t kSumBytes = 64 << 10;  // of three chunks: a rank's sums for the others
static_assert(kNumChunkSlots * kChunkBytes + kSumBytes <= kSlotBytes);
inline constexpr int kMaxRanks = 4096;  // each has at least a cache line of a chunk

// Offsets into an arena, for a team of `size` ranks.
struct ArenaLayout {
  explicit ArenaLayout(int size);

  size_t announcements = 0;  // [2], by the parity of the operation
  size_t status = 0;
  size_t splits = 0;        // [2][size] of uint64_t: AllToAll
  size_t splits_bytes = 0;  // of one parity
  size_t slots = 0;         // [2], by the parity of the operation: all of a small input, or chunks
  size_t inboxes = 0;       // [size] mailboxes, from each rank
  size_t inbox_bytes = 0;   // of one
  size_t bytes = 0;
};

}  // namespace lockstep::shm
