#include "base/unique_fd.h"

#include <cerrno>
#include <fcntl.h>
#include <filesystem>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "base/atomic_file.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

bool is_open(int fd) {
  return ::fcntl(fd, F_GETFD) >= 0;
}

class TemporaryFolder : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern =
        (std::filesystem::temp_directory_path() / "lockstep-test-XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string path(const std::string& name) const { return folder_ + "/" + name; }
  std::string folder_;
};

TEST(UniqueFd, ClosesWhatItOwnsOnce) {
  base::FdPair pipe = base::make_pipe();
  const int fd = pipe.read.get();
  {
    base::UniqueFd owner = std::move(pipe.read);
    EXPECT_TRUE(is_open(fd));
    EXPECT_FALSE(static_cast<bool>(pipe.read));
  }
  EXPECT_FALSE(is_open(fd));
}

TEST(UniqueFd, EveryDescriptorIsClosedOnExec) {
  const base::FdPair pipe = base::make_pipe();
  const base::FdPair sockets = base::make_socket_pair(SOCK_STREAM);
  for (const int fd :
       {pipe.read.get(), pipe.write.get(), sockets.read.get(), sockets.write.get()}) {
    EXPECT_NE(::fcntl(fd, F_GETFD) & FD_CLOEXEC, 0);
  }
}

TEST_F(TemporaryFolder, AMissingFileIsNamed) {
  try {
    base::open_file(path("none"), O_RDONLY);
    FAIL();
  } catch (const IoError& error) {
    EXPECT_THAT(error.what(), HasSubstr(path("none")));
    EXPECT_THAT(error.what(), HasSubstr("No such file"));
  }
}

TEST_F(TemporaryFolder, WritesWholeFilesOrNone) {
  base::write_file_atomically(path("a"), "one");
  EXPECT_EQ(base::read_file(path("a")), "one");
  base::write_file_atomically(path("a"), "two");
  EXPECT_EQ(base::read_file(path("a")), "two");
  EXPECT_THROW(base::write_file_atomically(path("no/such/folder"), "x"), IoError);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1)
      << "nothing beside is left";
}

// Two processes of different PID namespaces may have one number, and write the same file.
TEST_F(TemporaryFolder, TwoWritersOfOneFileEachLeaveItWhole) {
  base::AtomicFile one(path("a"));
  one.append(std::string(1000, '1'));
  base::AtomicFile other(path("a"));
  other.append("22");
  one.append(std::string(1000, '1'));
  one.commit();
  EXPECT_EQ(base::read_file(path("a")), std::string(2000, '1'));
  other.commit();
  EXPECT_EQ(base::read_file(path("a")), "22");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1);
}

TEST_F(TemporaryFolder, AFileLargerThanTheLimitIsRefused) {
  base::write_file_atomically(path("a"), std::string(1000, 'x'));
  EXPECT_EQ(base::read_file(path("a"), 1000).size(), 1000u);
  EXPECT_THROW(base::read_file(path("a"), 999), IoError);
}

TEST(Files, AFullDeviceIsAnError) {
  const base::UniqueFd full = base::open_file("/dev/full", O_WRONLY);
  EXPECT_THROW(base::write_all(full.get(), "x", 1), IoError);
}

TEST(Mapping, MapsAndUnmaps) {
  base::Mapping mapping(-1, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE);
  mapping.data()[4095] = std::byte{7};
  base::Mapping moved = std::move(mapping);
  EXPECT_EQ(mapping.data(), nullptr);
  EXPECT_EQ(moved.data()[4095], std::byte{7});
  moved.reset();
  EXPECT_EQ(moved.size(), 0u);
  EXPECT_EQ(base::Mapping(-1, 0, PROT_READ, MAP_PRIVATE).data(), nullptr);
  EXPECT_THROW(base::Mapping(-1, size_t{1} << 62, PROT_READ, MAP_PRIVATE), IoError);
}

TEST(ErrnoText, NamesTheLimitOfOpenFiles) {
  EXPECT_THAT(base::errno_text(EMFILE), HasSubstr("`ulimit -n`"));
  EXPECT_THAT(base::errno_text(ENFILE), HasSubstr("fs.file-max"));
}

}  // namespace
}  // namespace lockstep
