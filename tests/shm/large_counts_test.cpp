// More than 2^32 bytes and elements: counts and offsets are not cut to 32 bits. The memory is one
// small file that is mapped again and again, and pages of its own at the end.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "base/env.h"
#include "base/unique_fd.h"
#include "shm/kernels.h"

namespace lockstep::shm::test {
namespace {

constexpr size_t kPiece = 64 << 20;
constexpr size_t kFourGiB = size_t{1} << 32;
constexpr size_t kTail = 64 << 10;

// kFourGiB bytes that are `kPiece` ones repeated, and then kTail real ones.
class LargeMemory {
 public:
  explicit LargeMemory(std::byte value)
      : place_(-1, kFourGiB + kTail, PROT_NONE, MAP_PRIVATE | MAP_NORESERVE) {
    const base::UniqueFd file(::memfd_create("piece", MFD_CLOEXEC));
    EXPECT_EQ(::ftruncate(file.get(), kPiece + kTail), 0);
    for (size_t at = 0; at < kFourGiB; at += kPiece) {
      map(file.get(), at, kPiece, 0);
    }
    map(file.get(), kFourGiB, kTail, kPiece);
    std::fill_n(data(), kPiece, value);
    std::fill_n(tail(), kTail, value);
  }

  std::byte* data() const { return place_.data(); }
  std::byte* tail() const { return data() + kFourGiB; }

 private:
  void map(int fd, size_t at, size_t bytes, off_t offset) const {
    EXPECT_NE(
        ::mmap(data() + at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, offset),
        MAP_FAILED)
        << base::errno_text(errno);
  }

  base::Mapping place_;
};

// One element fewer than the memory has: the last must stay as it is.
template <typename Element>
void expect_reduced_to_the_end(DataType type, Element one, Element two, Element sum) {
  const LargeMemory left(std::byte{0}), right(std::byte{0}), result(std::byte{0});
  const size_t count = (kFourGiB + kTail) / sizeof(Element) - 1;
  const size_t tail = kTail / sizeof(Element);
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
