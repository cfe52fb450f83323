#pragma once

// The memory that a rank saves, between the thread that writes it and the one that wants to change
// it. It is written from where it lies as long as no one waits for it; otherwise it is copied, from
// its end.

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "base/stopwatch.h"
#include "base/unique_fd.h"
#include "checkpoint/layout.h"

namespace lockstep::checkpoint {

// Copies, kept from one save to the next: memory that has been used is several times faster than
// fresh one. Threads: not thread-safe.
class CopyPool {
 public:
  static constexpr uint64_t kBytes = 4u << 20;  // of each

  base::Mapping take();  // used before, if there is one
  void give_back(base::Mapping memory) { idle_.push_back(std::move(memory)); }
  bool has_used() const { return !idle_.empty(); }

 private:
  std::vector<base::Mapping> idle_;
};

// Threads: one that writes, one that captures.
class Snapshot {
 public:
  // `pool` must outlive it.
  Snapshot(const std::vector<Share::Memory>& memory, CopyPool& pool);
  ~Snapshot();
  Snapshot(const Snapshot&) = delete;
  Snapshot& operator=(const Snapshot&) = delete;

  size_t num_chunks() const { return chunks_.size(); }

  // The writer's, for each chunk in rising order: its bytes, until end_write().
  std::span<const std::byte> begin_write(size_t which);
  void end_write(size_t which);

  // The save has ended. Nothing is read any more when this returns, by capture() neither.
  void close();

  // Returns when the memory may change. Copies chunks from the last one backwards while there is
  // memory for it and that is faster than to wait for the writer.
  void capture();

 private:
  enum class State { Live, Writing, Copying, Copied, Done };
  struct Chunk {
    const std::byte* data = nullptr;
    uint64_t bytes = 0;
    State state = State::Live;
    base::Mapping copy;
  };

  std::vector<Chunk>::iterator last_live();
  base::Mapping take_memory();  // none if there is none
  bool is_captured() const;

  CopyPool& pool_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Chunk> chunks_;
  bool is_closed_ = false;
  size_t num_written_ = 0;
  base::Stopwatch pace_;
  double write_s_ = 0;  // of a chunk, at the pace so far
  double fresh_s_ = 0;  // of the last copy into fresh memory
};

}  // namespace lockstep::checkpoint
