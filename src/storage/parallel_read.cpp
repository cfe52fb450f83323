#include "storage/parallel_read.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include <lockstep/base/error.h>

namespace lockstep::storage {

void for_each_parallel(size_t count, int num_threads, const std::function<void(size_t)>& work) {
  if (num_threads < 1) {
    throw UsageError("{} threads are not at least 1", num_threads);
  }
  std::atomic<size_t> next = 0;
  std::atomic<bool> has_failed = false;
  std::exception_ptr first_error;
  std::mutex mutex;
  const auto run = [&] {
    for (size_t i = next++; i < count && !has_failed; i = next++) {
      try {
        work(i);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!has_failed.exchange(true)) {
          first_error = std::current_exception();
        }
      }
    }
  };
  {
    std::vector<std::jthread> helpers;
    const size_t wanted = std::min(count, static_cast<size_t>(num_threads));
    try {
      while (helpers.size() + 1 < wanted) {
        helpers.emplace_back(run);
      }
    } catch (const std::system_error&) {
      // No more threads are to be had here; those that there are do it all.
    }
    run();
  }
  if (first_error) {
    std::rethrow_exception(first_error);
  }
}

void read_parallel(const base::ByteSource& source, uint64_t offset, std::span<std::byte> bytes,
                   const ReadOptions& options) {
  if (options.chunk_bytes < 1) {
    throw UsageError("chunks of {} bytes to read {} in are not at least 1", options.chunk_bytes,
                     source.name());
  }
  const size_t chunk = options.chunk_bytes;
  const size_t count = bytes.empty() ? 0 : (bytes.size() - 1) / chunk + 1;
  for_each_parallel(count, options.num_threads, [&](size_t i) {
    const size_t begin = i * chunk;
    source.read_at(offset + begin, bytes.subspan(begin, std::min(chunk, bytes.size() - begin)));
  });
}

}  // namespace lockstep::storage
