// The memory of a save when there is none left for copies.

#include "checkpoint/snapshot.h"

#include <atomic>
#include <sys/resource.h>
#include <thread>

#include <gtest/gtest.h>

namespace lockstep {
namespace {

// While it lives, nothing more can be mapped.
class NoMoreMemory {
 public:
  NoMoreMemory() {
    ::getrlimit(RLIMIT_AS, &former_);
    const rlimit none{.rlim_cur = 1, .rlim_max = former_.rlim_max};
    ::setrlimit(RLIMIT_AS, &none);
  }
  ~NoMoreMemory() { ::setrlimit(RLIMIT_AS, &former_); }
  NoMoreMemory(const NoMoreMemory&) = delete;

 private:
  rlimit former_{};
};

TEST(Snapshot, WithoutMemoryForCopiesTheWriterIsWaitedFor) {
  std::vector<std::byte> memory(3 * checkpoint::CopyPool::kBytes + 5);
  checkpoint::CopyPool pool;
  checkpoint::Snapshot snapshot({{memory.data(), memory.size()}}, pool);
  uint64_t num_written = 0;
  std::thread writer;
  {
    std::atomic<bool> may_write = false;
    writer = std::thread([&] {
      for (int turns = 0; turns < 10'000; turns += may_write ? 1 : 0) {  // capture() comes first
        std::this_thread::yield();
      }
      for (size_t i = 0; i < snapshot.num_chunks(); ++i) {
        num_written += snapshot.begin_write(i).size();
        snapshot.end_write(i);
      }
      snapshot.close();
    });
    const NoMoreMemory limit;
    may_write = true;
    snapshot.capture();
  }
  writer.join();
  EXPECT_EQ(num_written, memory.size());
}

}  // namespace
}  // namespace lockstep
