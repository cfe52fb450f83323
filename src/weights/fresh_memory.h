#pragma once

// Copies into parameters. In memory that was never written, the kernel's part, a zeroed page for
// every fault, costs more than the copy that follows; elsewhere the caches' part does.

#include <cstddef>
#include <cstdint>
#include <span>

namespace lockstep::weights {

// Copies into memory that may be fresh, and has the kernel provide it in the way that proves to be
// the faster one here and now: many small pages in one call, or huge ones. Huge pages are twice as
// fast on a machine of one's own. A virtual machine may have given just these back to its host, and
// gets them at a fifth of the speed of small ones. Memory that is there is written past the caches.
// Threads: not thread-safe.
class FreshMemory {
 public:
  // A piece of memory that is written from its begin to its end by calls of copy().
  struct Place {
    std::byte* begin = nullptr;
    std::byte* end = nullptr;
  };
  void copy(const Place& place, uint64_t offset, std::span<const std::byte> bytes);

 private:
  struct Speed {  // of the last blocks, in bytes per nanosecond of this thread's own time
    double value = 0;
    bool is_known = false;
    void add(size_t bytes, int64_t nanoseconds);
  };

  // Provides some memory from `from` (a page's begin) on, and returns where it ends.
  std::byte* provide(std::byte* from, std::byte* end);
  bool provide_huge(std::byte* block);
  bool provide_small(std::byte* from, size_t bytes);
  bool tries_huge();

  std::byte* ready_from_ = nullptr;  // memory is there from here
  std::byte* ready_to_ = nullptr;    // to here
  Speed small_;
  Speed huge_;
  bool is_fresh_ = true;     // what lies before ready_to_
  int num_until_other_ = 0;  // blocks until the way that seems slower is tried again
  bool has_huge_ = true;     // until the kernel shows that it gives none
  bool has_small_ = true;    // until it refuses to
};

}  // namespace lockstep::weights
