#pragma once

// Threads that read this rank's chunks of the stream ahead of their use.

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "base/byte_source.h"
#include "weights/checksums.h"
#include "weights/plan.h"

namespace lockstep::weights {

struct ReaderOptions {
  const LoadPlan* plan = nullptr;
  std::span<const std::unique_ptr<base::ByteSource>>
      sources;                     // of the catalog's files; null: not needed
  Checksums* checksums = nullptr;  // null: nothing is compared
  uint64_t chunk_bytes = 0;
  uint64_t piece_bytes = 0;  // read at a time, of a chunk
  uint64_t reader = 0;  // reads the chunks reader, reader + num_readers, ...: one in each round
  uint64_t num_readers = 1;
  uint64_t num_rounds = 0;
  uint64_t num_ahead = 1;  // rounds that may be read before the first allow()
  int num_threads = 1;     // each reads a round at a time
  std::function<std::span<std::byte>(uint64_t round)> slot;
};

// Everything in the options must outlive it.
class ChunkReader {
 public:
  explicit ChunkReader(ReaderOptions options);
  ~ChunkReader();
  ChunkReader(const ChunkReader&) = delete;
  ChunkReader& operator=(const ChunkReader&) = delete;

  // Returns when the round's chunk is in its slot; throws what reading it threw.
  void await(uint64_t round);

  // The slots of all rounds below `num_rounds` are free.
  void allow(uint64_t num_rounds);

  uint64_t bytes_read() const;

 private:
  void run();
  void read(uint64_t round);

  const ReaderOptions options_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t num_allowed_ = 0;
  uint64_t next_round_ = 0;
  std::vector<bool> is_read_;  // by round
  uint64_t bytes_read_ = 0;
  bool stops_ = false;
  std::exception_ptr error_;
  std::vector<std::thread> threads_;  // last: they use the others
};

}  // namespace lockstep::weights
