// More than 2^32 bytes and elements: counts and offsets are not cut to 32 bits.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include <gtest/gtest.h>

#include "base/env.h"
#include "shm/kernels.h"
#include "shm/large_memory.h"

namespace lockstep::shm::test {
namespace {

// One element fewer than the memory has: the last must stay as it is.
template <typename Element>
void expect_reduced_to_the_end(DataType type, Element one, Element two, Element sum) {
  const LargeMemory left, right, result;
  const size_t count = LargeMemory::bytes() / sizeof(Element) - 1;
  const size_t tail = kTailBytes / sizeof(Element);
  std::fill_n(reinterpret_cast<Element*>(left.tail()), tail, one);
  std::fill_n(reinterpret_cast<Element*>(right.tail()), tail, two);
  const std::array<const void*, 2> sources = {left.data(), right.data()};
  void* destination = result.data();
  find_kernel({.from = type, .to = type})({.sources = sources.data(),
                                           .num_sources = 2,
                                           .destinations = &destination,
                                           .num_destinations = 1,
                                           .count = count});
  const auto* const end = reinterpret_cast<const Element*>(result.tail());
  for (size_t i = 0; i + 1 < tail; ++i) {
    ASSERT_EQ(end[i], sum) << "element " << i << " beyond 4 GiB";
  }
  EXPECT_EQ(end[tail - 1], Element{}) << "one too many";
  EXPECT_EQ(*reinterpret_cast<const Element*>(result.data()), Element{});
}

TEST(LargeCounts, KernelsReduceBeyondFourGigabytes) {
  if (!base::Env().flag("LOCKSTEP_LONG_TESTS").value_or(false)) {
    GTEST_SKIP() << "LOCKSTEP_LONG_TESTS=1 reduces 4 GiB twice";
  }
  expect_reduced_to_the_end<int8_t>(DataType::Int8, 3, -5, -2);
  expect_reduced_to_the_end<float>(DataType::Float32, 1.5f, 2.25f, 3.75f);
}

}  // namespace
}  // namespace lockstep::shm::test
