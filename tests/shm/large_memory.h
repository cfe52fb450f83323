#pragma once

// More than 2^32 bytes that cost 64 MiB: one small file that is mapped again and again, and pages
// of its own at the end. What is written at one place of the repeated part is seen at all of them,
// so that only operations whose results repeat in the same way can be tried on it.

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "base/unique_fd.h"

namespace lockstep::shm::test {

inline constexpr size_t kPieceBytes = 64 << 20;
inline constexpr size_t kFourGiB = size_t{1} << 32;
inline constexpr size_t kTailBytes = 64 << 10;

// kFourGiB bytes that are `kPieceBytes` ones repeated, and then kTailBytes real ones; zeros.
class LargeMemory {
 public:
  LargeMemory() : place_(-1, bytes(), PROT_NONE, MAP_PRIVATE | MAP_NORESERVE) {
    const base::UniqueFd file(::memfd_create("piece", MFD_CLOEXEC));
    EXPECT_EQ(::ftruncate(file.get(), kPieceBytes + kTailBytes), 0);
    for (size_t at = 0; at < kFourGiB; at += kPieceBytes) {
      map(file.get(), at, kPieceBytes, 0);
    }
    map(file.get(), kFourGiB, kTailBytes, kPieceBytes);
  }

  static constexpr size_t bytes() { return kFourGiB + kTailBytes; }
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

}  // namespace lockstep::shm::test
