// Images are distrusted, looked into and entered; nothing is left when the last process inside
// ends.

#include "image/image.h"

#include <cstring>
#include <elf.h>
#include <fcntl.h>
#include <filesystem>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "base/process/fork.h"
#include "image/image_build.h"
#include "image/image_fixture.h"
#include "image/tools.h"

namespace lockstep::test {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

namespace fs = std::filesystem;

std::string refusal(const image::ContainerOptions& options, const std::string& program = "") {
  try {
    image::check_image(options, program);
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), Not(HasSubstr("\n")));
    return error.what();
  }
  return "it passed";
}

// What is wrong with the image if `bytes` stand at `offset`.
std::string refusal_with(const std::string& folder, std::string image, size_t offset,
                         const std::string& bytes) {
  image.replace(offset, bytes.size(), bytes);
  const std::string path = folder + "/changed.sqsh";
  base::write_file_atomically(path, image);
  return refusal({.image = path});
}

TEST_F(ImageTest, IsSound) {
  const image::ImageInfo info = image::check_image({.image = image()}, "/hello");
  EXPECT_EQ(info.program, "/hello");
  EXPECT_TRUE(info.has_shell);
  EXPECT_EQ(info.squashfs.compression, "zstd");
  EXPECT_EQ(info.squashfs.file_bytes, fs::file_size(image()));
  EXPECT_LE(info.squashfs.bytes_used, info.squashfs.file_bytes);
#if defined(__x86_64__)
  EXPECT_EQ(info.machine, "x86-64");
#endif
  EXPECT_EQ(image::check_image({.image = image()}, "cat").program, "/usr/bin/cat");
}

TEST_F(ImageTest, TornFilesAreNamed) {
  const std::string whole = base::read_file(image(), 1u << 30);
  const uint64_t used = image::check_image({.image = image()}).squashfs.bytes_used;
  for (const uint64_t size : {uint64_t{4}, uint64_t{95}, uint64_t{96}, used / 2, used - 1}) {
    const std::string path = folder() + "/torn.sqsh";
    base::write_file_atomically(path, whole.substr(0, size));
    EXPECT_THAT(refusal({.image = path}),
                AllOf(HasSubstr("is truncated: it is " + std::to_string(size) + " bytes long"),
                      HasSubstr("again")));
  }
  base::write_file_atomically(folder() + "/torn.sqsh", "");
  EXPECT_THAT(refusal({.image = folder() + "/torn.sqsh"}), HasSubstr("is empty"));
  EXPECT_THAT(refusal({.image = folder() + "/none.sqsh"}), EndsWith("No such file or directory"));
  EXPECT_THAT(refusal({.image = folder()}), HasSubstr("is a folder"));
  EXPECT_THAT(refusal({.image = "/dev/null"}), HasSubstr("is neither a file nor a folder"));
}

TEST_F(ImageTest, ForeignFilesAreNamed) {
  using namespace std::string_literals;
  const std::string sif = "#!/usr/bin/env run-singularity\n\0SIF_MAGIC\0"s;
  const std::vector<std::pair<std::string, std::string>> files = {
      {"\x1f\x8b\x08"s, "a gzip file"},
      {"PK\x03\x04zip"s, "a zip file"},
      {"\x7f"
       "ELF\x02"s,
       "a program (ELF)"},
      {sif, "an Apptainer image (SIF)"},
      {"#!/bin/sh\n"s, "a script"},
      {"hello\n"s, "text"},
      {"sqsh"s + std::string(96, '\0'), "a big-endian squashfs"},
      {std::string(96, '\xee'), "its first four bytes are not \"hsqs\""}};
  for (const auto& [bytes, name] : files) {
    base::write_file_atomically(folder() + "/foreign", bytes);
    EXPECT_THAT(refusal({.image = folder() + "/foreign"}),
                AllOf(HasSubstr("is not squashfs: it"), HasSubstr(name)));
  }
}

TEST_F(ImageTest, ADamagedSuperblockIsNotBelieved) {
  const std::string whole = base::read_file(image(), 1u << 30);
  EXPECT_THAT(refusal_with(folder(), whole, 28, "\x03"), HasSubstr("is squashfs 3.0"));
  EXPECT_THAT(refusal_with(folder(), whole, 20, "\x09"),
              HasSubstr("compressed in a way (number 9)"));
  EXPECT_THAT(refusal_with(folder(), whole, 12, "\x01"), HasSubstr("contradicts itself"));
  EXPECT_THAT(refusal_with(folder(), whole, 64, std::string(8, '\xff')),
              HasSubstr("contradicts itself"));
  // Past the superblock only mounting it can tell.
  const std::string noise(whole.size() - 96, '\x5a');
  EXPECT_THAT(refusal_with(folder(), whole, 96, noise),
              HasSubstr("its root folder cannot be read"));
}

TEST_F(ImageTest, TheProgramIsLookedFor) {
  EXPECT_THAT(refusal({.image = image()}, "/no/program"), HasSubstr("has no /no/program"));
  EXPECT_THAT(refusal({.image = image()}, "no_program"),
              HasSubstr("has no program no_program in its PATH (/usr/local/bin:/usr/bin:/bin)"));
  EXPECT_THAT(refusal({.image = image()}, "/plain"), HasSubstr("is not an executable file"));
  EXPECT_THAT(refusal({.image = image()}, "/data"), HasSubstr("is not an executable file"));
  EXPECT_THAT(refusal({.image = image()}, "/orphan"),
              HasSubstr("needs /opt/python9, which the image lacks"));
  // What a mount brings counts.
  fs::create_directories(folder() + "/code");
  fs::copy_file(folder() + "/from/hello", folder() + "/code/mine",
                fs::copy_options::overwrite_existing);
  EXPECT_EQ(image::check_image(
                {.image = image(), .mounts = {image::parse_mount(folder() + "/code:/data")}},
                "/data/mine")
                .program,
            "/data/mine");
}

TEST_F(ImageTest, AProgramForAnotherMachineIsNamed) {
  std::string bytes = base::read_file("/proc/self/exe", 1u << 30).substr(0, 4096);
  const uint16_t alien = EM_68K;
  std::memcpy(bytes.data() + offsetof(Elf64_Ehdr, e_machine), &alien, sizeof alien);
  const base::UniqueFd fd =
      base::open_file(folder() + "/alien", O_WRONLY | O_CREAT | O_TRUNC, 0755);
  base::write_all(fd.get(), bytes.data(), bytes.size());
  EXPECT_THAT(
      refusal({.image = image(), .mounts = {image::parse_mount(folder() + "/alien:/alien")}},
              "/alien"),
      AllOf(HasSubstr("is for another machine: its /alien is for machine 4"),
            HasSubstr("this host is")));
}

TEST_F(ImageTest, TheRootIsReadOnlyAndTheJobsOwnFoldersAreNot) {
  const base::Output output = enter(
      {},
      "touch /x /etc/x /data/x; touch /tmp/x /run/x && ls /run /tmp && readlink /proc/self/exe");
  EXPECT_EQ(output.status.code, 0) << output.err;
  EXPECT_EQ(count(output.err, "Read-only file system"), 3) << output.err;
  EXPECT_THAT(output.out, StartsWith("/run:\nx\n\n/tmp:\nx\n/usr/bin/"));
  EXPECT_EQ(enter({}, "exit 7").status.code, 7);
  EXPECT_EQ(enter({}, "kill -9 $$").status.code, 128 + 9);
}

TEST_F(ImageTest, MountsAreReadOnlyWhenAsked) {
  fs::create_directories(folder() + "/rw/sub");
  fs::create_directories(folder() + "/ro/sub");
  base::write_file_atomically(folder() + "/ro/data", "numbers\n");
  const base::Output output = enter(
      {"--mount", folder() + "/rw:/checkpoints", "--mount", folder() + "/ro:/data:ro", "--mount",
       folder() + "/ro/data:/not/in/the/image:ro", "--mount", folder() + "/rw:/data/sub", "--mount",
       folder() + "/ro:/tmp/a/b:ro", "--mount", folder() + "/ro:/detour"},
      "touch /data/x /tmp/a/b/x /not/x; echo > /not/in/the/image; touch /checkpoints/a && "
      "touch /data/sub/b && cat /data/data /not/in/the/image /tmp/a/b/data /srv/data");
  EXPECT_EQ(output.status.code, 0) << output.err;
  EXPECT_EQ(output.out, "numbers\nnumbers\nnumbers\nnumbers\n");
  EXPECT_GE(count(output.err, "Read-only file system"), 3) << output.err;
  EXPECT_TRUE(fs::exists(folder() + "/rw/a"));
  EXPECT_TRUE(fs::exists(folder() + "/rw/b"));
  EXPECT_FALSE(fs::exists(folder() + "/ro/x"));
}

TEST_F(ImageTest, AMountInAMountNeedsItsPlace) {
  const base::Output output =
      enter({"--mount", folder() + ":/data", "--mount", folder() + ":/data/nowhere"}, "true");
  EXPECT_EQ(output.status.code, 2);
  EXPECT_THAT(output.err, HasSubstr("there is no /data/nowhere to mount on"));
}

// A read-only mount is so all the way down, also where another file system is mounted inside it.
TEST_F(ImageTest, ReadOnlyReachesMountsBelow) {
  if (::geteuid() != 0) {
    GTEST_SKIP() << "needs root to mount something below the source";
  }
  fs::create_directories(folder() + "/outer/inner");
  const base::Output output = run(
      {"unshare", "--mount", "sh", "-c",
       fmt::format("mount -t tmpfs none {0}/outer/inner && {1} image enter {2} --mount "
                   "{0}/outer:/data:ro -- sh -c 'touch /data/inner/x; grep -c /data /proc/mounts'",
                   folder(), program(), image())});
  EXPECT_EQ(output.out, "2\n") << output.err;
  EXPECT_THAT(output.err, HasSubstr("Read-only file system"));
}

TEST_F(ImageTest, TheEnvironmentIsTheImagesAndTheJobs) {
  const base::Output output = enter({}, "env",
                                    {{"FROM_HOST", "here"},
                                     {"FLAVOUR", "of the host"},
                                     {"MINE", "kept"},
                                     {"RANK", "3"},
                                     {"LOCKSTEP_JOB_SECRET", "s3cret"},
                                     {"LD_LIBRARY_PATH", "/of/the/host"}});
  const auto env = lines(output.out);
  for (const char* entry : {"PATH=/usr/local/bin:/usr/bin:/bin", "FLAVOUR=of the image",
                            "SHARED=here/x", "MINE=kept", "RANK=3", "LOCKSTEP_JOB_SECRET=s3cret"}) {
    EXPECT_THAT(env, ::testing::Contains(entry));
  }
  EXPECT_THAT(output.out, Not(HasSubstr("LD_LIBRARY_PATH")));
  EXPECT_THAT(enter({}, "env").out, HasSubstr("RANK=9"));  // no job: the image's
}

TEST_F(ImageTest, TheCurrentFolderStaysWhereItExists) {
  const auto pwd = [this](const std::string& from) {
    return run({"sh", "-c",
                fmt::format("cd {} && {} image enter {} pwd", from, program(), image())})
        .out;
  };
  EXPECT_EQ(pwd("/usr"), "/usr\n");
  EXPECT_EQ(pwd(folder()), "/\n");
}

TEST_F(ImageTest, WhatCannotStartSaysWhy) {
  const base::Output missing = run({program(), "image", "enter", image(), "no_program"});
  EXPECT_EQ(missing.status.code, 127);
  EXPECT_THAT(missing.err, HasSubstr("cannot start no_program in the image: No such file"));
  EXPECT_EQ(run({program(), "image", "enter", image(), "/plain"}).status.code, 126);
  const auto code = [&](const std::string& name) {  // of a job, as without an image
    const base::Output output = run({program(), "run", "--image", image(), "--", name});
    EXPECT_EQ(lines(output.err).size(), 1u) << output.err;
    EXPECT_THAT(output.err, HasSubstr("lockstep run: "));
    return output.status.code;
  };
  EXPECT_EQ(code("no_program"), 127);
  EXPECT_EQ(code("/no/program"), 127);
  EXPECT_EQ(code("/orphan"), 127);
  EXPECT_EQ(code("/plain"), 126);
}

TEST_F(ImageTest, ARefusedNamespaceNamesTheSettings) {
  const base::Output output =
      run({"unshare", "--user", "--map-root-user", "sh", "-c",
           fmt::format("cd /proc/sys/user && echo 0 > max_mnt_namespaces && echo 0 > "
                       "max_user_namespaces && echo forbidden && exec {} image enter {} true",
                       program(), image())});
  if (output.out != "forbidden\n") {
    GTEST_SKIP() << "namespaces cannot be forbidden here: " << output.err;
  }
  EXPECT_EQ(output.status.code, 1);
  EXPECT_THAT(output.err, AllOf(HasSubstr("the system refuses a user namespace"),
                                HasSubstr("user.max_user_namespaces")));
}

TEST_F(ImageTest, ARuntimeThatIsNotInstalledIsNamed) {
  const base::Output output =
      run({program(), "image", "enter", image(), "--container-runtime", "enroot"},
          {{"PATH", folder()}});
  EXPECT_EQ(output.status.code, 1);
  EXPECT_THAT(output.err, HasSubstr("cannot start enroot: No such file or directory"));
}

TEST_F(ImageTest, SquashfuseMountsWhereTheKernelDoesNot) {
  if (::geteuid() != 0) {
    GTEST_SKIP() << "needs root to hide the loop devices";
  }
  const std::string hidden = "mount --bind /dev/null /dev/loop-control && ";
  const base::Output output =
      run({"unshare", "--mount", "sh", "-c",
           hidden + fmt::format("{} image enter {} -- sh -c 'grep \" / \" /proc/mounts; touch /x'",
                                program(), image())});
  EXPECT_THAT(output.out, HasSubstr(" / fuse")) << output.err;
  EXPECT_THAT(output.err, HasSubstr("Read-only file system"));
  // Without it too, the sentence has both reasons.
  const base::Output neither =
      run({"unshare", "--mount", "sh", "-c",
           hidden + fmt::format("PATH= {} image enter {} true", program(), image())});
  EXPECT_EQ(neither.status.code, 1);
  EXPECT_THAT(neither.err, AllOf(HasSubstr("the kernel: "), HasSubstr("install squashfuse")));
}

TEST_F(ImageTest, AnOrdinaryUserEnters) {
  if (::geteuid() != 0) {
    GTEST_SKIP() << "the other tests are this one";
  }
  fs::create_directories(folder() + "/theirs");
  fs::permissions(folder() + "/theirs", static_cast<fs::perms>(0777));
  // udev opens /dev/fuse to everybody; a machine without udev does not.
  const base::Output output =
      run({"unshare", "--mount", "sh", "-c",
           fmt::format(
               "mknod {0}/fuse c 10 229 && chmod 666 {0}/fuse && mount --bind {0}/fuse /dev/fuse "
               "&& exec setpriv --reuid 65534 --regid 65534 --clear-groups {1} image enter {2} "
               "--mount {0}/theirs:/checkpoints --mount {0}/theirs:/new/place:ro -- sh -c "
               "'id -u; touch /x /new/place/x; touch /checkpoints/x && echo wrote'",
               folder(), program(), image())});
  if (output.err.find("user namespace") != std::string::npos ||
      output.err.find("/dev/fuse") != std::string::npos) {
    ASSERT_FALSE(is_required("image")) << output.err;
    GTEST_SKIP() << output.err;
  }
  EXPECT_EQ(output.out, "65534\nwrote\n") << output.err;
  EXPECT_EQ(count(output.err, "Read-only file system"), 2) << output.err;
}

TEST_F(ImageTest, KillLeavesNothing) {
  const base::UniqueFd out = base::open_file(folder() + "/out", O_RDWR | O_CREAT | O_TRUNC);
  base::Process process({.argv = {program(), "image", "enter", image(), "--", "sh", "-c",
                                  "echo ready; exec sleep 1000"},
                         .env = {{"LOCKSTEP_TEST_MARK", mark()}},
                         .stdout_fd = out.get()});
  ASSERT_TRUE(wait_until([] { return base::read_file(folder() + "/out") == "ready\n"; }));
  process.kill(SIGKILL);
  EXPECT_EQ(process.wait(base::Deadline::after(kPatience))->signal, SIGKILL);
}  // TearDown() looks for what is left

TEST_F(ImageTest, CharliecloudRunsTheSameImage) {
  if (image::find_tool("ch-run").empty()) {
    ASSERT_FALSE(is_required("image")) << "ch-run is not installed";
    GTEST_SKIP() << "ch-run is not installed";
  }
  fs::create_directories(folder() + "/ch");
  const image::ContainerOptions options{
      .image = image(),
      .mounts = {image::parse_mount(folder() + "/ch:/checkpoints")},
      .runtime = image::ContainerRuntime::Charliecloud};
  const std::string user = fmt::format("lockstep-test-{}", ::getpid());
  const base::Output output = run(
      image::container_command(options, {"/bin/sh", "-c", "/hello $RANK; touch /checkpoints/x /x"}),
      {{"USER", user}, {"RANK", "5"}});
  fs::remove_all("/var/tmp/" + user + ".ch");  // where ch-run mounts, unless told otherwise
  EXPECT_EQ(output.out, "hello 5\n") << output.err;
  EXPECT_THAT(output.err, HasSubstr("Read-only file system"));
  EXPECT_TRUE(fs::exists(folder() + "/ch/x"));
}

}  // namespace
}  // namespace lockstep::test
