#include "storage/location.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "storage/storage.h"
#include "support/refusal.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

TEST(Location, IsAPathAUrlOrABucket) {
  EXPECT_EQ(storage::parse_location("models/a b%20").path, "models/a b%20");
  EXPECT_EQ(storage::parse_location("file:///models/a b%20").path, "/models/a b%20");
  const storage::Location key = storage::parse_location("s3://weights/gpt2//model+1.bin");
  EXPECT_TRUE(key.is_s3);
  EXPECT_EQ(key.bucket, "weights");
  EXPECT_EQ(key.path, "gpt2//model+1.bin");
  EXPECT_EQ(storage::parse_location("s3://weights").path, "");
  EXPECT_EQ(storage::parse_location("s3://weights//gpt2/").path, "gpt2");
  EXPECT_TRUE(storage::is_remote("s3://weights/x"));
  EXPECT_FALSE(storage::is_remote("file:///x"));
}

TEST(Location, RefusesWhatItDoesNotKnow) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "a file or folder is missing"},
      {"gs://bucket/x", "'gs://' is not known"},
      {"file://host/x", "must begin with a slash"},
      {"s3://", "'' cannot be the name of a bucket"},
      {"s3://a/b", "'a' cannot be the name of a bucket (3 to 63"},
      {"s3://a@b.c:80/x", "'a@b.c:80' cannot be the name of a bucket"},
  };
  for (const auto& [text, expected] : cases) {
    EXPECT_THAT(test::refusal([text = text] { storage::parse_location(text); }),
                HasSubstr(expected));
  }
}

TEST(Location, KeepsPathsInside) {
  storage::check_relative("a/b.c/..d", "x");
  for (const char* path : {"", "/a", "a//b", "a/", "./a", "a/..", "../a", "."}) {
    EXPECT_THAT(test::refusal([&] { storage::check_relative(path, "/data"); }),
                HasSubstr("is no path inside it"))
        << path;
  }
  EXPECT_THROW(storage::check_relative(std::string("a\0b", 3), "/data"), UsageError);
}

}  // namespace
}  // namespace lockstep
