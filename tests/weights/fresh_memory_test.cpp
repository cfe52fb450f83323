#include "weights/fresh_memory.h"

#include <algorithm>
#include <cstring>
#include <sys/mman.h>
#include <vector>

#include <gtest/gtest.h>

#include "base/unique_fd.h"

namespace lockstep {
namespace {

constexpr size_t kHugePage = 2 << 20;
constexpr size_t kBytes = 4 * kHugePage;

// Memory that begins at a huge page; nobody has touched it.
std::byte* aligned(const base::Mapping& mapping) {
  std::byte* const begin = mapping.data();
  return begin + -reinterpret_cast<uintptr_t>(begin) % kHugePage;
}

// It tries huge pages when it knows what small ones cost.
void learn_small_pages(weights::FreshMemory& memory) {
  const std::vector<std::byte> bytes(kHugePage * 3 / 4);
  const base::Mapping mapping(-1, kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS);
  memory.copy({mapping.data(), mapping.data() + bytes.size()}, 0, bytes);
}

// A parameter seldom begins with a page: what lies before it in its first page is another's.
TEST(FreshMemory, LeavesAloneWhatItWasNotGiven) {
  std::vector<std::byte> bytes(kBytes - 2 * kHugePage);
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>(i * 7 + 1);
  }
  for (int i = 0; i < 5; ++i) {
    weights::FreshMemory memory;
    learn_small_pages(memory);
    const base::Mapping mapping(-1, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS);
    std::byte* const begin = aligned(mapping);
    constexpr size_t kBefore = 64;
    std::memset(begin, 0x5a, kBefore);
    std::memset(begin + kBefore + bytes.size(), 0x5a, kBefore);
    const weights::FreshMemory::Place place{begin + kBefore, begin + kBefore + bytes.size()};
    memory.copy(place, 0, bytes);
    EXPECT_EQ(std::memcmp(place.begin, bytes.data(), bytes.size()), 0);
    for (size_t k = 0; k < kBefore; ++k) {
      EXPECT_EQ(begin[k], std::byte{0x5a}) << "round " << i << ", byte " << k << " before it";
      EXPECT_EQ(place.end[k], std::byte{0x5a}) << "round " << i << ", byte " << k << " behind it";
    }
  }
}

}  // namespace
}  // namespace lockstep
