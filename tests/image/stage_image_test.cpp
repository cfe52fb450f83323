// An image that lies in a bucket.

#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "image/image_fixture.h"
#include "support/s3_server.h"
#include "support/service.h"

namespace lockstep::test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST_F(ImageTest, ComesFromS3AndIsKept) {
  LOCKSTEP_NEEDS("s3", s3_refusal());
  const TempFolder place;
  fs::create_directories(place.at("s3/images"));
  fs::create_directory(place.at("data"));
  place.file("data/x", "staged too");
  fs::copy_file(image(), place.at("s3/images/job.sqsh"));
  place.file("s3/images/torn.sqsh", "no image");
  const S3Server server(place.at("s3"));
  auto env = server.env();
  env["LOCKSTEP_CACHE_DIR"] = place.at("cache");
  const auto start = [&](const std::string& name) {
    return run({lockstep_program(), "run", "--stage", place.at("data") + ":" + place.at("local"),
                "--image", "s3://images/" + name, "--mount", place.at("local") + ":/data:ro", "--",
                "sh", "-c", "while read line; do echo \"in it: $line\"; done < /data/x || :"},
               env);
  };
  const base::Output first = start("job.sqsh");
  EXPECT_EQ(first.status.shell_code(), 0) << first.err;
  EXPECT_TRUE(fs::exists(place.at("cache/images/images/job.sqsh")));
  EXPECT_THAT(start("job.sqsh").err, HasSubstr("2 already there"));
  const base::Output torn = start("torn.sqsh");
  EXPECT_EQ(torn.status.shell_code(), 1);
  EXPECT_THAT(torn.err, AllOf(HasSubstr("cannot stage on"), HasSubstr("torn.sqsh")));
}

}  // namespace
}  // namespace lockstep::test
