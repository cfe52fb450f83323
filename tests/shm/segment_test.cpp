#include "shm/segment.h"

#include <cstring>
#include <fcntl.h>
#include <limits>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "shm/child.h"

namespace lockstep::shm::test {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

constexpr size_t kPage = 4096;

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
