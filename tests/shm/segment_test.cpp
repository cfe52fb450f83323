#include "shm/segment.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <iterator>
#include <limits>
#include <optional>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "shm/child.h"
#include "support/refused_calls.h"

namespace lockstep::shm::test {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

constexpr size_t kPage = 4096;

// A kernel that a signal interrupts in pieces of more than this; 0: none does.
off_t most_at_once = 0;
int num_interrupted = 0;

template <typename Body>
std::string io_error_of(Body body) {
  try {
    body();
  } catch (const IoError& error) {
    return error.what();
  }
  return "no IoError";
}

base::UniqueFd copy_of(int fd) {
  return base::UniqueFd(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
}

base::UniqueFd memfd_of(size_t bytes, int seals) {
  base::UniqueFd fd(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(::ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
  EXPECT_EQ(::fcntl(fd.get(), F_ADD_SEALS, seals), 0);
  return fd;
}

constexpr int kAllSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

TEST(Segment, IsZeroedAlignedAndOfItsSize) {
  for (const size_t bytes : {size_t{0}, size_t{1}, kPage, 3 * kPage + 5}) {
    const auto segment = Segment::create(bytes);
    EXPECT_EQ(segment->bytes(), bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(segment->data()) % kPage, 0U);
    for (size_t i = 0; i < bytes; ++i) {
      ASSERT_EQ(segment->data()[i], std::byte{0});
    }
  }
}

TEST(Segment, IsSharedWithWhoMapsItsDescriptor) {
  const auto segment = Segment::create(100);
  const PeerSegment peer(copy_of(segment->fd()));
  EXPECT_EQ(peer.bytes(), 100U);
  EXPECT_NE(peer.data(), segment->data());
  segment->data()[99] = std::byte{7};
  EXPECT_EQ(peer.data()[99], std::byte{7});
  Child child([&] {
    const PeerSegment mapped(copy_of(segment->fd()));
    require(mapped.data()[99] == std::byte{7}, "the other process sees what was written");
    mapped.data()[98] = std::byte{8};
    return 0;
  });
  EXPECT_TRUE(child.wait(base::Deadline::after(60s)).ok());
  EXPECT_EQ(segment->data()[98], std::byte{8});
}

TEST(Segment, CannotBeResized) {
  const auto segment = Segment::create(kPage);
  for (const off_t bytes : {off_t{0}, off_t{kPage}, off_t{1 << 20}}) {
    EXPECT_EQ(::ftruncate(segment->fd(), bytes), -1);
    EXPECT_EQ(errno, EPERM);
  }
  EXPECT_EQ(::fcntl(segment->fd(), F_ADD_SEALS, F_SEAL_WRITE), -1);
}

TEST(Segment, IsFoundByAnyPartOfIt) {
  const auto segment = Segment::create(1000);
  std::byte* const data = segment->data();
  EXPECT_EQ(Segment::find(data, 1000), segment);
  EXPECT_EQ(Segment::find(data + 999, 1), segment);
  EXPECT_EQ(Segment::find(data + 1000, 0), segment);
  EXPECT_EQ(Segment::find(data, 1001), nullptr);
  EXPECT_EQ(Segment::find(data + 999, 2), nullptr);
  EXPECT_EQ(Segment::find(data + 1, std::numeric_limits<size_t>::max()), nullptr);
  EXPECT_EQ(Segment::find(data - 1, 1), nullptr);
  int on_stack = 0;
  EXPECT_EQ(Segment::find(&on_stack, sizeof on_stack), nullptr);
}

TEST(Segment, IsNotFoundOnceItIsGone) {
  auto segment = Segment::create(1000);
  std::byte* const data = segment->data();
  segment.reset();
  EXPECT_EQ(Segment::find(data, 1), nullptr);
}

TEST(Segment, TellsItsMappersWhenItIsFreed) {
  auto segment = Segment::create(1000);
  segment->data()[5] = std::byte{5};
  const PeerSegment peer(copy_of(segment->fd()));
  EXPECT_FALSE(peer.released());
  segment.reset();
  EXPECT_TRUE(peer.released());
  EXPECT_EQ(peer.data()[5], std::byte{5});  // still there for who maps it
}

TEST(Segment, RenewKeepsAddressAndContentsAndLeavesOldMappersBehind) {
  const auto segment = Segment::create(2 * kPage);
  std::byte* const data = segment->data();
  std::memset(data, 0x11, 2 * kPage);
  const PeerSegment old(copy_of(segment->fd()));
  segment->renew();
  EXPECT_EQ(segment->data(), data);
  EXPECT_EQ(segment->bytes(), 2 * kPage);
  EXPECT_EQ(data[0], std::byte{0x11});
  EXPECT_EQ(data[2 * kPage - 1], std::byte{0x11});
  EXPECT_TRUE(old.released());
  old.data()[0] = std::byte{0x22};
  EXPECT_EQ(data[0], std::byte{0x11}) << "who mapped the old memory still writes to the new";
  const PeerSegment fresh(copy_of(segment->fd()));
  EXPECT_FALSE(fresh.released());
  fresh.data()[0] = std::byte{0x33};
  EXPECT_EQ(data[0], std::byte{0x33});
  EXPECT_EQ(Segment::find(data, 2 * kPage), segment);
}

TEST(Segment, RefusesWhatNoMachineHas) {
  for (const size_t bytes : {size_t{1} << 60, std::numeric_limits<size_t>::max() - 100,
                             std::numeric_limits<size_t>::max()}) {
    const std::string text = io_error_of([&] { Segment::create(bytes); });
    EXPECT_THAT(text, HasSubstr(fmt::format("cannot get {} bytes", bytes)));
    EXPECT_THAT(text, HasSubstr("memory limit"));
  }
}

// What create() says where the system refuses `call`, as an old kernel or a sandbox does.
std::string refusal_without(uint32_t call, uint32_t error,
                            std::optional<lockstep::test::ArgumentRule> only = {}) {
  std::string text;
  std::thread([&] {
    lockstep::test::refuse_call(call, error, only);
    text = io_error_of([] { Segment::create(5 * kPage); });
  }).join();
  return text;
}

int64_t num_open_files() {
  const std::filesystem::directory_iterator files("/proc/self/fd");
  return std::distance(begin(files), end(files));
}

TEST(Segment, SaysWhatTheSystemRefusesAndLeavesNothingOpen) {
  const int64_t files = num_open_files();
  EXPECT_THAT(refusal_without(SYS_memfd_create, ENOSYS),
              HasSubstr("shared memory: memfd_create: Function not implemented"));
  EXPECT_THAT(refusal_without(SYS_memfd_create, EPERM), HasSubstr("Operation not permitted"));
  EXPECT_THAT(refusal_without(SYS_fcntl, EPERM,
                              lockstep::test::ArgumentRule{.index = 1, .value = F_ADD_SEALS}),
              HasSubstr("shared memory: sealing: Operation not permitted"));
  const std::string full = refusal_without(SYS_fallocate, ENOSPC);
  EXPECT_THAT(full, HasSubstr("cannot get 20480 bytes: No space left on device"));
  EXPECT_THAT(full, HasSubstr("free memory, or raise the memory limit"));
  EXPECT_THAT(refusal_without(SYS_mmap, ENOMEM,
                              lockstep::test::ArgumentRule{.index = 3, .value = MAP_SHARED}),
              HasSubstr("cannot map 24576 bytes: Cannot allocate memory"));
  EXPECT_EQ(num_open_files(), files);
}

TEST(Segment, AFailedRenewLeavesTheOldMemory) {
  const auto segment = Segment::create(kPage);
  segment->data()[7] = std::byte{7};
  std::thread([&] {
    lockstep::test::refuse_call(SYS_fallocate, ENOSPC);
    EXPECT_THAT(io_error_of([&] { segment->renew(); }), HasSubstr("No space left on device"));
  }).join();
  const PeerSegment peer(copy_of(segment->fd()));
  EXPECT_FALSE(peer.released());
  EXPECT_EQ(segment->data()[7], std::byte{7});
  EXPECT_EQ(peer.data()[7], std::byte{7});
}

TEST(Segment, IsFilledThoughSignalsInterruptIt) {
  constexpr size_t kBytes = (1 << 20) + 5;
  most_at_once = 64 << 10;
  num_interrupted = 0;
  const auto segment = Segment::create(kBytes);
  most_at_once = 0;
  EXPECT_GT(num_interrupted, 0);
  struct stat status {};
  ASSERT_EQ(::fstat(segment->fd(), &status), 0);
  EXPECT_GE(static_cast<size_t>(status.st_blocks) * 512, kBytes) << "some of it has no memory";
}

TEST(PeerSegment, RefusesAFileThatCanShrink) {
  EXPECT_THROW(PeerSegment(memfd_of(2 * kPage, 0)), FormatError);
  EXPECT_THROW(PeerSegment(memfd_of(2 * kPage, F_SEAL_GROW)), FormatError);
}

TEST(PeerSegment, RefusesWhatIsNoMemory) {
  EXPECT_THROW(PeerSegment(base::make_pipe().read), FormatError);
  EXPECT_THROW(PeerSegment(base::make_socket_pair(SOCK_STREAM).read), FormatError);
  EXPECT_THROW(PeerSegment(base::open_file("/dev/null", O_RDWR)), FormatError);
}

TEST(PeerSegment, RefusesAFileWithoutRoomForAHeader) {
  EXPECT_THROW(PeerSegment(memfd_of(0, kAllSeals)), FormatError);
  EXPECT_THROW(PeerSegment(memfd_of(kPage - 1, kAllSeals)), FormatError);
}

TEST(PeerSegment, RefusesAHeaderThatLies) {
  EXPECT_THROW(PeerSegment(memfd_of(2 * kPage, kAllSeals)), FormatError);  // no header at all
  const auto segment = Segment::create(kPage);
  auto* const words = reinterpret_cast<uint64_t*>(segment->data() - kPage);  // of the header
  const uint64_t magic = words[0];
  words[0] = magic + 1;
  EXPECT_THROW(PeerSegment(copy_of(segment->fd())), FormatError);
  words[0] = magic;
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{kPage - 1}, uint64_t{1} << 40}) {
    words[1] = bytes;
    EXPECT_THROW(PeerSegment(copy_of(segment->fd())), FormatError);
  }
  words[1] = kPage;
  EXPECT_NO_THROW(PeerSegment(copy_of(segment->fd())));
}

}  // namespace
}  // namespace lockstep::shm::test

// In libc's place.
extern "C" int posix_fallocate(int fd, off_t offset, off_t bytes) {
  using lockstep::shm::test::most_at_once;
  if (most_at_once != 0 && bytes > most_at_once) {
    ++lockstep::shm::test::num_interrupted;
    return EINTR;
  }
  return ::syscall(SYS_fallocate, fd, 0, offset, bytes) == 0 ? 0 : errno;
}
