#include "weights/fresh_memory.h"

#include <algorithm>
#include <cstring>
#include <ctime>
#include <sys/mman.h>

#ifdef __SSE2__
#include <immintrin.h>
#endif

#ifndef MADV_POPULATE_WRITE  // Linux 5.14; older headers lack it
#define MADV_POPULATE_WRITE 23
#endif

namespace lockstep::weights {

namespace {

constexpr size_t kPage = 4096;
constexpr size_t kHugePage = 2 << 20;
constexpr size_t kLine = 64;
constexpr size_t kStep = 256 << 10;      // zeroed and written while it is in the core's cache
constexpr size_t kWorthwhile = 1 << 20;  // smaller pieces of memory are rarely fresh

std::byte* down_to(std::byte* address, size_t unit) {
  return address - reinterpret_cast<uintptr_t>(address) % unit;
}

bool is_resident(std::byte* from, size_t bytes) {
  unsigned char pages[kHugePage / kPage];
  return ::mincore(from, bytes, pages) == 0 &&
         std::all_of(pages, pages + (bytes + kPage - 1) / kPage,
                     [](unsigned char page) { return (page & 1) != 0; });
}

#ifdef __SSE2__
using CopyLines = void (*)(std::byte* to, const std::byte* from, size_t num_lines);

void copy_lines_sse2(std::byte* to, const std::byte* from, size_t num_lines) {
  for (; num_lines > 0; to += kLine, from += kLine, --num_lines) {
    const auto* source = reinterpret_cast<const __m128i*>(from);
    auto* target = reinterpret_cast<__m128i*>(to);
    const __m128i parts[] = {_mm_loadu_si128(source), _mm_loadu_si128(source + 1),
                             _mm_loadu_si128(source + 2), _mm_loadu_si128(source + 3)};
    for (int i = 0; i < 4; ++i) {
      _mm_stream_si128(target + i, parts[i]);
    }
  }
}

// A line with one store: 1.3 times as fast.
__attribute__((target("avx512f"))) void copy_lines_avx512(std::byte* to, const std::byte* from,
                                                          size_t num_lines) {
  for (; num_lines > 0; to += kLine, from += kLine, --num_lines) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to), _mm512_loadu_si512(from));
  }
}

CopyLines fastest_copy_lines() {
  return __builtin_cpu_supports("avx512f") ? copy_lines_avx512 : copy_lines_sse2;
}
#endif

// Writes past the caches: a weight is not read soon after it is loaded, and a store would first
// read the line that it overwrites.
void copy_past_caches(std::byte* to, const std::byte* from, size_t bytes) {
#ifdef __SSE2__
  static const CopyLines copy_lines = fastest_copy_lines();
  const size_t head = std::min(bytes, -reinterpret_cast<uintptr_t>(to) % kLine);
  std::memcpy(to, from, head);
  const size_t body = (bytes - head) / kLine * kLine;
  copy_lines(to + head, from + head, body / kLine);
  _mm_sfence();
  to += head + body, from += head + body, bytes -= head + body;
#endif
  std::memcpy(to, from, bytes);
}

int64_t own_time_ns() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return time.tv_sec * 1'000'000'000 + time.tv_nsec;
}

}  // namespace

void FreshMemory::Speed::add(size_t bytes, int64_t nanoseconds) {
  const double now =
      static_cast<double>(bytes) / static_cast<double>(std::max<int64_t>(nanoseconds, 1));
  value = is_known ? (value + now) / 2 : now;
  is_known = true;
}

void FreshMemory::copy(const Place& place, uint64_t offset, std::span<const std::byte> bytes) {
  std::byte* to = place.begin + offset;
  if (static_cast<size_t>(place.end - place.begin) < kWorthwhile) {
    std::memcpy(to, bytes.data(), bytes.size());
    return;
  }
  if (to < ready_from_ || to > ready_to_) {
    ready_from_ = ready_to_ = down_to(to, kPage);
  }
  while (!bytes.empty()) {
    if (ready_to_ <= to) {
      ready_to_ = provide(ready_to_, place.end);
    }
    const auto room = static_cast<size_t>(ready_to_ - to);
    const auto part = bytes.first(std::min({bytes.size(), room, kStep}));
    if (is_fresh_) {
      std::memcpy(to, part.data(), part.size());
    } else {
      copy_past_caches(to, part.data(), part.size());
    }
    to += part.size();
    bytes = bytes.subspan(part.size());
  }
}

std::byte* FreshMemory::provide(std::byte* from, std::byte* end) {
  std::byte* const block = down_to(from, kHugePage);
  std::byte* const block_end = std::min(block + kHugePage, down_to(end + kPage - 1, kPage));
  is_fresh_ = !is_resident(from, static_cast<size_t>(block_end - from));
  if (!is_fresh_) {
    return block_end;
  }
  const bool fits = block == from && static_cast<size_t>(end - from) >= kHugePage;
  if (fits && tries_huge() && provide_huge(from)) {
    return from + kHugePage;
  }
  std::byte* const to = std::min(from + kStep, block_end);
  return provide_small(from, static_cast<size_t>(to - from)) ? to : std::max(to, end);
}

// The faster way, and the other one now and then: what the kernel has at hand changes.
bool FreshMemory::tries_huge() {
  if (!has_huge_ || !small_.is_known) {
    return false;
  }
  if (!huge_.is_known) {
    return true;
  }
  const bool is_faster = huge_.value > small_.value;
  if (num_until_other_-- > 0) {
    return is_faster;
  }
  const double ratio = is_faster ? huge_.value / small_.value : small_.value / huge_.value;
  num_until_other_ = static_cast<int>(std::min(32 * ratio, 512.0));
  return !is_faster;
}

bool FreshMemory::provide_huge(std::byte* block) {
  const int64_t start = own_time_ns();
  unsigned char is_there = 0;
  if (::madvise(block, kHugePage, MADV_HUGEPAGE) == 0) {
    // One fault provides all of it. A store will not do: the page may begin with bytes of others.
    if (::madvise(block, kPage, MADV_POPULATE_WRITE) != 0 ||
        ::mincore(block + kHugePage - kPage, kPage, &is_there) != 0) {
      is_there = 0;
    }
  }
  has_huge_ = (is_there & 1) != 0;
  huge_.add(kHugePage, own_time_ns() - start);
  return has_huge_;
}

bool FreshMemory::provide_small(std::byte* from, size_t bytes) {
  if (!has_small_) {
    return false;
  }
  const int64_t start = own_time_ns();
  has_small_ = ::madvise(from, bytes, MADV_POPULATE_WRITE) == 0;
  small_.add(bytes, own_time_ns() - start);
  return has_small_;
}

}  // namespace lockstep::weights
