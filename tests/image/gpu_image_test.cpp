// A job in an image on a host with a GPU: the driver is made of files and device nodes, in a mount
// namespace of the test's own.

#include <filesystem>
#include <unistd.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/unique_fd.h"
#include "image/image_build.h"
#include "image/image_fixture.h"
#include "image/libraries.h"

namespace lockstep::test {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
namespace fs = std::filesystem;

// Makes this mount namespace a host with one GPU: its nodes (of null's kind) in /dev, and libraries
// in /usr/local/lib, where every Debian looks. Their bytes are those of `sh`, which is ELF.
constexpr const char* kHost = R"(set -e
mkdir -p {0}/dev && mount -t tmpfs none {0}/dev && mkdir {0}/dev/new {0}/dev/work
mount -t overlay none -o lowerdir=/dev,upperdir={0}/dev/new,workdir={0}/dev/work /dev
for name in nvidia0 nvidiactl nvidia-uvm; do mknod -m 666 /dev/$name c 1 3; done
mount -t tmpfs none /usr/local/lib && cd /usr/local/lib
cp /bin/sh libcuda.so.580.95.05 && ln -s libcuda.so.580.95.05 libcuda.so.1
cp /bin/sh libnvidia-ml.so.1 && chmod 644 libnvidia-ml.so.1
mount -t tmpfs none /run && mkdir /run/nvidia-persistenced
echo here > /run/nvidia-persistenced/socket
mkdir /run/mps /usr/local/lib/mps
cd /
)";

class GpuImageTest : public ImageTest {
 protected:
  void SetUp() override {
    ImageTest::SetUp();
    if (!IsSkipped() && ::geteuid() != 0) {
      GTEST_SKIP() << "needs root to make device nodes";
    }
  }

  // `lockstep image WORDS` on the host with a GPU, as root.
  base::Output on_gpu_host(const std::string& words, std::map<std::string, std::string> env = {}) {
    return run({"unshare", "--mount", "sh", "-c",
                fmt::format(kHost, folder()) + program() + " image " + words},
               std::move(env));
  }

  base::Output enter_there(const std::string& script, std::map<std::string, std::string> env = {}) {
    return on_gpu_host(fmt::format("enter {} -- sh -c '{}'", image(), script), std::move(env));
  }
};

TEST_F(GpuImageTest, SeesTheHostsDriver) {
  const base::Output output = enter_there(
      "ls /run/lockstep/driver; echo $LD_LIBRARY_PATH; ls /dev/nvidia*; "
      "cat /run/nvidia-persistenced/socket; cmp /run/lockstep/driver/libcuda.so.1 "
      "/run/lockstep/driver/libnvidia-ml.so.1 && echo whole; "
      "rm /run/lockstep/driver/libcuda.so.1; echo x > /run/lockstep/driver/libnvidia-ml.so.1");
  EXPECT_EQ(output.out,
            "libcuda.so.1\nlibcuda.so.580.95.05\nlibnvidia-ml.so.1\n/run/lockstep/driver\n"
            "/dev/nvidia-uvm\n/dev/nvidia0\n/dev/nvidiactl\nhere\nwhole\n")
      << output.err;
  EXPECT_THAT(output.err, AllOf(HasSubstr("libcuda.so.1"), HasSubstr("Read-only file system")));
}

// In a user namespace of their own, where less may be mounted.
TEST_F(GpuImageTest, AnOrdinaryUserSeesItToo) {
  const base::Output output = run(
      {"unshare", "--mount", "sh", "-c",
       fmt::format(kHost, folder()) +
           fmt::format("chmod 666 /dev/fuse && exec setpriv --reuid 65534 --regid 65534 "
                       "--clear-groups {} image enter {} -- sh -c 'ls /run/lockstep/driver | wc "
                       "-l; echo > /run/lockstep/driver/libcuda.so.1'",
                       program(), image())});
  if (output.err.find("user namespace") != std::string::npos ||
      output.err.find("squashfuse") != std::string::npos ||
      output.err.find("/dev/fuse") != std::string::npos) {
    ASSERT_FALSE(is_required("image")) << output.err;
    GTEST_SKIP() << output.err;
  }
  EXPECT_EQ(lines(output.out), std::vector<std::string>{"3"}) << output.err;
  EXPECT_THAT(output.err, HasSubstr("Read-only file system"));
}

TEST_F(GpuImageTest, ThatItDoesNotWantStaysOut) {
  const base::Output output =
      enter_there("ls /run; echo $LD_LIBRARY_PATH", {{"LOCKSTEP_DEVICE", "cpu"}});
  EXPECT_EQ(output.out, "\n") << output.err;
  EXPECT_EQ(enter({}, "ls /run").out, "") << "and there is none here";
}

// Where MPS listens is brought along, and that it is not is no secret.
TEST_F(GpuImageTest, AFolderOfMpsThatStaysOutsideIsTold) {
  const auto enter_with = [&](const char* folder) {
    const base::Output output = enter_there("[ ! -d $CUDA_MPS_PIPE_DIRECTORY ] || echo in",
                                            {{"CUDA_MPS_PIPE_DIRECTORY", folder}});
    EXPECT_EQ(output.status.code, 0) << output.err;
    return output;
  };
  const base::Output in_run = enter_with("/run/mps");
  EXPECT_EQ(in_run.out, "in\n");
  EXPECT_THAT(in_run.err, Not(HasSubstr("outside")));
  const base::Output elsewhere = enter_with("/usr/local/lib/mps");
  EXPECT_EQ(elsewhere.out, "");
  EXPECT_THAT(elsewhere.err,
              AllOf(HasSubstr("WARN"),
                    HasSubstr("/usr/local/lib/mps stays outside: the image has "
                              "no /usr/local/lib/mps to mount it on"),
                    HasSubstr("without MPS"), HasSubstr("--mkdir /usr/local/lib/mps`")));
  for (const char* folder : {"local/mps", "/no/folder"}) {
    EXPECT_THAT(
        enter_with(folder).err,
        HasSubstr(fmt::format("CUDA_MPS_PIPE_DIRECTORY={} stays outside the image", folder)));
  }
}

// Links at every place where something is mounted: it must all stay inside, and the host's files as
// they were.
TEST_F(GpuImageTest, AHostileImageLeadsNowhere) {
  const fs::path root = folder() + "/hostile";
  fs::create_directories(root / "etc");
  fs::create_directories(root / "srv");
  fs::create_directories(root / "victim/lockstep");
  fs::create_directories(folder() + "/outside/lockstep/driver");
  fs::create_directory_symlink("../../../../.." + folder() + "/outside", root / "climb");
  fs::create_directory_symlink("/victim", root / "run");
  fs::create_directory_symlink(folder() + "/outside", root / "victim/lockstep/driver");
  fs::create_directory_symlink("/srv", root / "tmp");
  const std::string hostile = folder() + "/hostile.sqsh";
  image::build_image({.output = hostile, .from = root.string(), .force = true});
  const std::string before = base::read_file("/bin/sh", 1u << 30);
  const base::Output output = on_gpu_host(fmt::format(
      "enter {} -- sh -c 'ls /run/lockstep/driver /victim/lockstep/driver; echo $LD_LIBRARY_PATH'",
      hostile));
  EXPECT_EQ(output.status.code, 0) << output.err;
  EXPECT_EQ(count(output.out, "libcuda.so.580.95.05"), 2) << output.out << output.err;
  EXPECT_TRUE(fs::is_empty(folder() + "/outside/lockstep/driver"));
  EXPECT_EQ(base::read_file("/bin/sh", 1u << 30), before);
  EXPECT_TRUE(fs::is_empty(root / "srv"));
}

TEST_F(GpuImageTest, CheckSaysWhatAGpuJobNeeds) {
  const fs::path root = folder() + "/glibc";
  fs::create_directories(root / "usr/lib64");
  for (const std::string& library : image::needed_libraries("/bin/sh")) {
    if (fs::path(library).filename() == "libc.so.6") {
      fs::copy_file(library, root / "usr/lib64/libc.so.6");
    }
  }
  const std::string with_glibc = folder() + "/glibc.sqsh";
  image::build_image({.output = with_glibc, .from = root.string(), .force = true});
  const base::Output with = on_gpu_host("check " + with_glibc);
  EXPECT_EQ(with.status.code, 0) << with.err;
  EXPECT_THAT(with.out, ContainsRegex("GPU: driver 580.95.05 of this host, 3 libraries, which need "
                                      "glibc 2\\.[0-9]+; the image has glibc 2\\.[0-9]+\n"));
  const base::Output without = run({program(), "image", "check", image()});
  EXPECT_THAT(without.out,
              AllOf(HasSubstr("GPU: this host has no driver"), Not(HasSubstr("libraries"))));
}

}  // namespace
}  // namespace lockstep::test
