#pragma once

#include <cstddef>
#include <functional>
#include <span>

#include "base/byte_source.h"

namespace lockstep::storage {

struct ReadOptions {
  int num_threads = 8;            // >= 1: as many requests are under way
  size_t chunk_bytes = 8u << 20;  // >= 1: of each
};

// As ByteSource::read_at(), in chunks on several threads: one request alone fills neither a disk's
// queue nor a network's pipe. The first error of any chunk is thrown once all threads have stopped.
void read_parallel(const base::ByteSource& source, uint64_t offset, std::span<std::byte> bytes,
                   const ReadOptions& options = {});

// How many requests of one batch are under way at a time, where every read is a request.
inline constexpr int kRemoteReads = 8;

// Calls `work(i)` for every i below `count` on several threads, in rising order as far as that
// goes; after an error no further one begins. What read_parallel() does, for other work.
void for_each_parallel(size_t count, int num_threads, const std::function<void(size_t)>& work);

}  // namespace lockstep::storage
