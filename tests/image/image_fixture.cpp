#include "image/image_fixture.h"

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <unistd.h>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "base/secret.h"
#include "base/unique_fd.h"
#include "image/image.h"
#include "image/image_build.h"

namespace lockstep::test {

namespace {

namespace fs = std::filesystem;

struct Shared {
  TempFolder folder;
  std::string image = folder.path() + "/job.sqsh";
  std::string program = folder.path() + "/lockstep";
  std::optional<std::string> refusal;  // why images cannot be used here
};

std::unique_ptr<Shared> shared;

// A root with what the tests look for in it.
void make_image(const Shared& s) {
  fs::permissions(s.folder.path(), static_cast<fs::perms>(0755));
  fs::copy_file(lockstep_program(), s.program);
  const fs::path root = s.folder.path() + "/from";
  fs::create_directories(root / "etc");
  fs::create_directories(root / "srv");
  fs::create_directory_symlink("/srv", root / "detour");  // absolute: must stay in the image
  s.folder.file("from/etc/environment",
                "# a comment\n"
                "PATH=/usr/local/bin:/usr/bin:/bin\n"
                "FLAVOUR=\"of the image\"\n"
                "export SHARED=${FROM_HOST}/${NOT_SET}x\n"
                "RANK=9\n"
                "nonsense\n");
  s.folder.file("from/hello", "#!/bin/sh\necho hello $*\n", 0755);
  s.folder.file("from/plain", "no program\n");
  s.folder.file("from/orphan", "#!/opt/python9\n", 0755);
  image::build_image({.output = s.image, .from = root.string()});
}

}  // namespace

std::string mount_table() {
  return base::read_file("/proc/self/mountinfo");
}

std::vector<std::string> loop_devices(const std::string& folder) {
  std::vector<std::string> found;
  for (const auto& device : fs::directory_iterator("/sys/block")) {
    const std::string file = device.path().string() + "/loop/backing_file";
    std::error_code ignored;
    if (fs::exists(file, ignored) && base::read_file(file).starts_with(folder)) {
      found.push_back(device.path().string());
    }
  }
  return found;
}

void ImageTest::SetUpTestSuite() {
  if (shared) {
    return;
  }
  shared = std::make_unique<Shared>();
  try {
    make_image(*shared);
    image::check_image({.image = shared->image});
  } catch (const Error& error) {
    shared->refusal = error.what();
  }
}

void ImageTest::TearDownTestSuite() {
  shared.reset();
}

void ImageTest::SetUp() {
  mark_ = base::make_secret();
  mounts_before_ = mount_table();
  LOCKSTEP_NEEDS("image", shared->refusal);
}

void ImageTest::TearDown() {
  EXPECT_TRUE(wait_until([this] { return is_gone(); })) << "a process is left";
  EXPECT_TRUE(wait_until([] { return loop_devices(folder()).empty(); })) << "a loop device is left";
  EXPECT_EQ(mount_table(), mounts_before_);
}

const std::string& ImageTest::folder() {
  return shared->folder.path();
}
const std::string& ImageTest::image() {
  return shared->image;
}
const std::string& ImageTest::program() {
  return shared->program;
}

bool ImageTest::is_gone() const {
  for (const auto& process : fs::directory_iterator("/proc")) {
    std::string environment;
    try {
      environment = base::read_file(process.path().string() + "/environ");
    } catch (const IoError&) {
      continue;  // no process, or it ended while we looked
    }
    if (environment.find(mark_) != std::string::npos) {
      return false;
    }
  }
  return true;
}

base::Output ImageTest::run(std::vector<std::string> argv, std::map<std::string, std::string> env) {
  env["LOCKSTEP_TEST_MARK"] = mark_;
  base::Output output = base::run_process({.argv = std::move(argv), .env = std::move(env)},
                                          base::Deadline::after(kPatience));
  EXPECT_FALSE(output.timed_out) << output.out << output.err;
  return output;
}

base::Output ImageTest::enter(const std::vector<std::string>& flags, const std::string& script,
                              std::map<std::string, std::string> env) {
  std::vector<std::string> argv{program(), "image", "enter", image()};
  argv.insert(argv.end(), flags.begin(), flags.end());
  argv.insert(argv.end(), {"--", "sh", "-c", script});
  return run(std::move(argv), std::move(env));
}

}  // namespace lockstep::test
