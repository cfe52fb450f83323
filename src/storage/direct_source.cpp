#include "storage/direct_source.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <linux/magic.h>
#include <memory>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <fmt/format.h>

#include "base/round.h"

namespace lockstep::storage {

namespace {

constexpr uint64_t kPage = 4096;            // what O_DIRECT wants offsets and addresses to be of
constexpr size_t kWorthwhile = 256u << 10;  // below it the usual way is as good
constexpr size_t kBounceBytes = 2u << 20;
constexpr uint64_t kMaxSamples = 256;

// On a network file system the page cache is worth keeping: it saves the other ranks of a node a
// transfer.
bool is_local_disk(int fd) {
  struct statfs info {};
  constexpr decltype(info.f_type) kXfs = 0x58465342;
  return ::fstatfs(fd, &info) == 0 && (info.f_type == EXT4_SUPER_MAGIC || info.f_type == kXfs);
}

// Whether half of it is, by samples. The file is mapped to ask and never touched there: a mapped
// file that another process cuts kills the reader.
bool is_mostly_cached(const base::FileSource& file) {
  const uint64_t size = file.size();
  if (size == 0) {
    return true;
  }
  void* const place = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file.fd(), 0);
  if (place == MAP_FAILED) {
    return true;
  }
  const uint64_t num_pages = (size - 1) / kPage + 1;
  const uint64_t num_samples = std::min(num_pages, kMaxSamples);
  uint64_t num_cached = 0;
  for (uint64_t i = 0; i < num_samples; ++i) {
    unsigned char state = 0;
    std::byte* const page = static_cast<std::byte*>(place) + num_pages * i / num_samples * kPage;
    num_cached += ::mincore(page, kPage, &state) == 0 ? state & 1 : 1;
  }
  ::munmap(place, size);
  return num_cached * 2 >= num_samples;
}

struct Free {
  void operator()(std::byte* memory) const { std::free(memory); }
};

std::byte* bounce_buffer() {
  thread_local const std::unique_ptr<std::byte, Free> buffer(
      static_cast<std::byte*>(std::aligned_alloc(kPage, kBounceBytes)));
  return buffer.get();
}

}  // namespace

DirectSource::DirectSource(std::string path) : file_(std::move(path)) {
  if (!is_local_disk(file_.fd()) || is_mostly_cached(file_)) {
    return;
  }
  // Opened by its descriptor: the path may name another file by now.
  direct_.reset(
      ::open(fmt::format("/proc/self/fd/{}", file_.fd()).c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC));
  is_direct_ = static_cast<bool>(direct_);
  if (is_direct_) {
    // No reading ahead of a small read: what comes next is read past the cache, and would be twice.
    ::posix_fadvise(file_.fd(), 0, 0, POSIX_FADV_RANDOM);
  }
}

void DirectSource::read_inside(uint64_t offset, std::span<std::byte> bytes) const {
  const size_t done = is_direct_ && bytes.size() >= kWorthwhile ? read_uncached(offset, bytes) : 0;
  // What is left of it: nothing, or the kernel refused, or the file ends earlier than it did.
  file_.read_at(offset + done, bytes.subspan(done));
}

size_t DirectSource::read_uncached(uint64_t offset, std::span<std::byte> bytes) const {
  size_t done = 0;
  while (bytes.size() - done >= kPage) {
    const size_t n = read_direct(offset + done, bytes.subspan(done));
    if (n == 0) {
      break;
    }
    done += n;
  }
  return done;
}

// Over-reads by up to a page on both sides, unless offset and memory are aligned as they are.
size_t DirectSource::read_direct(uint64_t offset, std::span<std::byte> bytes) const {
  const bool is_aligned =
      offset % kPage == 0 && reinterpret_cast<uintptr_t>(bytes.data()) % kPage == 0;
  if (is_aligned) {
    return read_aligned(offset, bytes.first(bytes.size() / kPage * kPage));
  }
  const size_t before = offset % kPage;
  const size_t wanted = std::min(base::rounded_up(before + bytes.size(), kPage), kBounceBytes);
  const size_t n = read_aligned(offset - before, {bounce_buffer(), wanted});
  if (n <= before) {
    return 0;
  }
  const size_t useful = std::min(n - before, bytes.size());
  std::memcpy(bytes.data(), bounce_buffer() + before, useful);
  return useful;
}

size_t DirectSource::read_aligned(uint64_t offset, std::span<std::byte> bytes) const {
  for (;;) {
    const ssize_t n =
        ::pread(direct_.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (n >= 0) {
      return static_cast<size_t>(n);
    }
    if (errno != EINTR) {
      is_direct_ = false;
      return 0;
    }
  }
}

}  // namespace lockstep::storage
