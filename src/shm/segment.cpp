#include "shm/segment.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <map>
#include <mutex>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <lockstep/base/error.h>

namespace lockstep::shm {
namespace {

constexpr uint64_t kMagic = 0x6d67657370657473;
constexpr size_t kHeaderBytes = 4096;  // a page, so that data() is aligned to one
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

struct Header {
  uint64_t magic;
  uint64_t bytes;
  std::atomic<uint32_t> released;
};

Header& header_of(const base::Mapping& mapping) {
  return *reinterpret_cast<Header*>(mapping.data());
}

// Own segments by their address; the pointers are weak in effect: ~Segment takes its entry out.
struct Registry {
  std::mutex mutex;
  std::map<const std::byte*, Segment*> segments;
};
Registry& registry() {
  static auto* instance = new Registry;  // never destroyed: tensors may outlive main()
  return *instance;
}

// What the machine could never give: the kernel would take all the memory there is, and then kill.
bool is_beyond_machine(size_t bytes) {
  struct sysinfo machine {};
  return ::sysinfo(&machine) == 0 &&
         bytes / machine.mem_unit > machine.totalram + machine.totalswap;
}

// Returns 0 or an errno. Older kernels begin a piece anew when a signal comes: pieces get smaller
// until one is quicker than the signals.
int fill(int fd, off_t bytes) {
  constexpr off_t kLeastPiece = 64 << 10;
  off_t piece = bytes;
  for (off_t done = 0; done < bytes;) {
    const off_t wanted = std::min(piece, bytes - done);
    const int failure = ::posix_fallocate(fd, done, wanted);
    if (failure == EINTR) {
      piece = std::max(kLeastPiece, wanted / 2);
    } else if (failure != 0) {
      return failure;
    } else {
      done += wanted;
    }
  }
  return 0;
}

base::UniqueFd make_memfd(size_t bytes) {
  base::UniqueFd fd(::memfd_create("lockstep", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) {
    throw IoError("shared memory: memfd_create: {}", base::errno_text(errno));
  }
  const auto total = static_cast<off_t>(bytes + kHeaderBytes);
  int failure = is_beyond_machine(bytes) ? ENOMEM : 0;
  if (failure == 0 && ::ftruncate(fd.get(), total) != 0) {
    failure = errno;
  }
  if (failure == 0) {
    failure = fill(fd.get(), total);
  }
  if (failure != 0) {
    throw IoError(
        "shared memory: cannot get {} bytes: {}; free memory, or raise the memory limit of this "
        "job or container",
        bytes, base::errno_text(failure));
  }
  if (::fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) {
    throw IoError("shared memory: sealing: {}", base::errno_text(errno));
  }
  return fd;
}

void write_header(const base::Mapping& mapping, size_t bytes) {
  auto* header = new (mapping.data()) Header;
  header->bytes = bytes;
  header->released.store(0);
  header->magic = kMagic;
}

}  // namespace

Segment::Segment(size_t bytes)
    : bytes_(bytes),
      fd_(make_memfd(bytes)),
      mapping_(fd_.get(), bytes + kHeaderBytes, PROT_READ | PROT_WRITE, MAP_SHARED) {
  write_header(mapping_, bytes);
}

std::shared_ptr<Segment> Segment::create(size_t bytes) {
  std::shared_ptr<Segment> segment(new Segment(bytes));
  const std::lock_guard lock(registry().mutex);
  registry().segments[segment->data()] = segment.get();
  return segment;
}

Segment::~Segment() {
  {
    const std::lock_guard lock(registry().mutex);
    registry().segments.erase(data());
  }
  // The others still map it until they look at this.
  header_of(mapping_).released.store(1);
}

std::shared_ptr<Segment> Segment::find(const void* data, size_t bytes) {
  const auto* begin = static_cast<const std::byte*>(data);
  const std::lock_guard lock(registry().mutex);
  auto next = registry().segments.upper_bound(begin);
  if (next == registry().segments.begin()) {
    return nullptr;
  }
  Segment* segment = std::prev(next)->second;
  const auto offset = static_cast<size_t>(begin - segment->data());
  if (offset > segment->bytes_ || bytes > segment->bytes_ - offset) {
    return nullptr;
  }
  return segment->weak_from_this().lock();  // null if it is being destroyed
}

std::byte* Segment::data() const {
  return mapping_.data() + kHeaderBytes;
}

void Segment::renew() {
  base::UniqueFd fresh = make_memfd(bytes_);
  {
    const base::Mapping copy(fresh.get(), bytes_ + kHeaderBytes, PROT_READ | PROT_WRITE,
                             MAP_SHARED);
    std::memcpy(copy.data() + kHeaderBytes, data(), bytes_);
    write_header(copy, bytes_);
  }
  header_of(mapping_).released.store(1);
  void* const where = ::mmap(mapping_.data(), mapping_.size(), PROT_READ | PROT_WRITE,
                             MAP_SHARED | MAP_FIXED, fresh.get(), 0);
  if (where == MAP_FAILED) {
    throw IoError("shared memory: mapping {} bytes anew: {}", bytes_, base::errno_text(errno));
  }
  fd_ = std::move(fresh);
}

PeerSegment::PeerSegment(const base::UniqueFd& fd) {
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) {
    throw IoError("shared memory: fstat: {}", base::errno_text(errno));
  }
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals) {
    throw FormatError("shared memory: what another rank sent is not a sealed segment");
  }
  const auto total = static_cast<size_t>(status.st_size);
  if (total < kHeaderBytes) {
    throw FormatError("shared memory: a segment of {} bytes has no room for its header", total);
  }
  mapping_ = base::Mapping(fd.get(), total, PROT_READ | PROT_WRITE, MAP_SHARED);
  const Header& header = header_of(mapping_);
  bytes_ = total - kHeaderBytes;
  if (header.magic != kMagic || header.bytes != bytes_) {
    throw FormatError("shared memory: a segment of {} bytes says it has {}", bytes_, header.bytes);
  }
}

std::byte* PeerSegment::data() const {
  return mapping_.data() + kHeaderBytes;
}

bool PeerSegment::released() const {
  return header_of(mapping_).released.load() != 0;
}

}  // namespace lockstep::shm
