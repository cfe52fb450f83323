// Mounts, runtimes and environments as words: nothing is entered here.

#include "image/container.h"

#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "support/job.h"

namespace lockstep::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string mount_refusal(const std::string& text) {
  try {
    image::parse_mount(text);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "it passed";
}

TEST(ParseMount, TakesPathsAndAMode) {
  const TempFolder folder;
  const image::Mount plain = image::parse_mount(folder.path() + "/.:/data/");
  EXPECT_EQ(plain.target, "/data");
  EXPECT_FALSE(plain.read_only);
  EXPECT_TRUE(image::parse_mount(folder.path() + ":/a//b:ro").read_only);
  EXPECT_EQ(image::parse_mount(folder.path() + ":/a//./b:rw").target, "/a/b");
  EXPECT_EQ(image::parse_mount("/:/host").source, "/");
  EXPECT_EQ(image::parse_mount(".:/here").source, std::filesystem::current_path().string() + "/");
}

TEST(ParseMount, SaysWhichSideIsWrong) {
  EXPECT_THAT(mount_refusal("/tmp"), HasSubstr("--mount /tmp names no target; write SRC:DST"));
  EXPECT_THAT(mount_refusal(":/data"), HasSubstr("the source, before the colon, is missing"));
  EXPECT_THAT(mount_refusal("/tmp:"), HasSubstr("the target, after the colon, is missing"));
  EXPECT_THAT(mount_refusal("/no/such:/data"),
              HasSubstr("the source /no/such: No such file or directory"));
  EXPECT_THAT(mount_refusal("/dev/null:/data"), HasSubstr("neither a folder nor a file"));
  EXPECT_THAT(mount_refusal("/tmp:data"), HasSubstr("the target data is not an absolute path"));
  EXPECT_THAT(mount_refusal("/tmp:/a/../b"), HasSubstr("is not an absolute path"));
  EXPECT_THAT(mount_refusal("/tmp:/"), HasSubstr("would hide the image"));
  EXPECT_THAT(mount_refusal("/tmp://"), HasSubstr("would hide the image"));
  EXPECT_THAT(mount_refusal("/tmp:/data:w"), HasSubstr("is ro or rw"));
  EXPECT_THAT(mount_refusal("/tmp:/data:ro:x"), HasSubstr("can have no colon"));
}

image::ContainerOptions options_of(const std::string& runtime) {
  return {.image = "/images/job.sqsh",
          .mounts = {{.source = "/d", .target = "/data", .read_only = true},
                     {.source = "/c", .target = "/checkpoints"}},
          .runtime = image::parse_container_runtime(runtime)};
}

TEST(ContainerCommand, IsTheRuntimesOwn) {
  EXPECT_THAT(
      image::container_command(
          options_of("enroot"), {"train", "--lr", "1"},
          {"RANK=3", "LOCKSTEP_JOB_SECRET=x", "PATH=/bin", "BAD%%=1", "LINES=a\nb"}),
      ElementsAre("enroot", "start", "--mount", "/d:/data:none:x-create=auto,rbind,ro", "--mount",
                  "/c:/checkpoints:none:x-create=auto,rbind,rw", "--env", "RANK", "--env",
                  "LOCKSTEP_JOB_SECRET", "--", "/images/job.sqsh", "train", "--lr", "1"));
  EXPECT_THAT(image::container_command(options_of("apptainer"), {"train"}),
              ElementsAre("apptainer", "exec", "--bind", "/d:/data:ro", "--bind",
                          "/c:/checkpoints:rw", "/images/job.sqsh", "train"));
  image::ContainerOptions options = options_of("charliecloud");
  options.mounts.erase(options.mounts.begin());
  EXPECT_THAT(image::container_command(options, {"train"}),
              ElementsAre("ch-run", "--bind=/c:/checkpoints", "/images/job.sqsh", "--", "train"));
}

std::string command_refusal(const image::ContainerOptions& options) {
  try {
    image::container_command(options, {"train"});
  } catch (const UsageError& error) {
    return error.what();
  }
  return "it passed";
}

TEST(ContainerCommand, SaysWhatARuntimeCannotDo) {
  EXPECT_THAT(command_refusal(options_of("charliecloud")),
              HasSubstr("--mount /d:/data:ro: charliecloud has no read-only mounts"));
  EXPECT_THAT(command_refusal(options_of("builtin")), HasSubstr("without another command"));
  image::ContainerOptions options = options_of("apptainer");
  options.mounts[0].source = "/a,b";
  EXPECT_THAT(command_refusal(options), HasSubstr("apptainer takes a comma"));
  options.runtime = image::ContainerRuntime::Enroot;
  EXPECT_EQ(command_refusal(options), "it passed");
  options.mounts[0].source = "/a b";
  EXPECT_THAT(command_refusal(options), HasSubstr("a path with a blank"));
  EXPECT_THROW(image::parse_container_runtime("docker"), UsageError);
}

TEST(ImageEnvironment, OfAnImageWithoutOneIsTheHosts) {
  const TempFolder root;
  EXPECT_THAT(
      image::image_environment({"B=2", "A=1=1", "PATH=/host", "LD_PRELOAD=/x.so"}, root.path()),
      ElementsAre("A=1=1", "B=2",
                  "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"));
  EXPECT_TRUE(image::is_job_variable("MASTER_PORT") &&
              image::is_job_variable("TORCHELASTIC_RUN_ID"));
  EXPECT_FALSE(image::is_job_variable("OMP_NUM_THREADS") || image::is_job_variable("RANKS"));
}

}  // namespace
}  // namespace lockstep::test
