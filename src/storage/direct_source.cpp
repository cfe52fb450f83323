#include "storage/direct_source.h"

#include <algorithm>
#include <array>
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

namespace lockstep {

namespace {

constexpr uint64_t kPage = 4096;            // what O_DIRECT wants offsets and addresses to be of
constexpr size_t kWorthwhile = 256u << 10;  // below it the usual way is as good
constexpr size_t kStep = 8u << 20;
constexpr size_t kBounceBytes = 2u << 20;

// Over a network the page cache saves the other ranks of a node a transfer.
bool is_local_disk(int fd) {
  struct statfs info {};
  constexpr decltype(info.f_type) kXfs = 0x58465342;
  return ::fstatfs(fd, &info) == 0 && (info.f_type == EXT4_SUPER_MAGIC || info.f_type == kXfs);
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
  if (is_local_disk(file_.fd())) {
    // By its descriptor: the path may be another file by now.
    direct_.reset(::open(fmt::format("/proc/self/fd/{}", file_.fd()).c_str(),
                         O_RDONLY | O_DIRECT | O_CLOEXEC));
  }
  is_direct_ = static_cast<bool>(direct_);
}

void DirectSource::read_inside(uint64_t offset, std::span<std::byte> bytes) const {
  while (!bytes.empty()) {
    const auto step = bytes.first(std::min(bytes.size(), kStep));
    size_t done = 0;
    if (is_direct_ && step.size() >= kWorthwhile && !is_cached(offset, step.size())) {
      done = read_uncached(offset, step);
    }
    // What is left of it: nothing, or the kernel refused, or the file ends earlier than it did.
    file_.read_at(offset + done, step.subspan(done));
    offset += step.size();
    bytes = bytes.subspan(step.size());
  }
}

// Whether half of it is. The file is mapped to ask and never touched there: a mapped file that
// another process cuts kills the reader. (RWF_NOWAIT would start to read ahead: half as fast.)
bool DirectSource::is_cached(uint64_t offset, size_t size) const {
  const uint64_t begin = offset / kPage * kPage;
  const size_t length = size + (offset - begin);
  void* place =
      ::mmap(nullptr, length, PROT_READ, MAP_SHARED, file_.fd(), static_cast<off_t>(begin));
  if (place == MAP_FAILED) {
    return true;
  }
  std::array<unsigned char, kStep / kPage + 2> pages{};
  const bool is_known = ::mincore(place, length, pages.data()) == 0;
  ::munmap(place, length);
  const auto count = static_cast<ptrdiff_t>((length - 1) / kPage + 1);
  const auto num_cached = std::count_if(pages.begin(), pages.begin() + count,
                                        [](unsigned char page) { return (page & 1) != 0; });
  return !is_known || num_cached * 2 >= count;
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
  const size_t n = read_aligned(offset - before, {bounce_buffer(), kBounceBytes});
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

}  // namespace lockstep
