#include "formats/sharded_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "formats/support.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

formats::ShardedIndex read(std::string_view text) {
  return formats::read_sharded_index(test::source_of(text));
}

TEST(ShardedIndex, SaysWhichFileHoldsWhat) {
  const formats::ShardedIndex index = read(
      R"({"metadata":{"total_size":24},"weight_map":{"b":"two.bin","a":"one.bin","c":"one.bin"}})");
  EXPECT_THAT(index.shards, ElementsAre("one.bin", "two.bin"));
  EXPECT_EQ(index.shard_of.at("c"), "one.bin");
  EXPECT_EQ(index.total_size, 24u);
  EXPECT_FALSE(read(R"({"weight_map":{}})").total_size.has_value());
}

TEST(ShardedIndex, IsComparedWithEveryShard) {
  const formats::ShardedIndex index = read(R"({"weight_map":{"a":"one","b":"two"}})");
  formats::check_shard(index, "one", {{.name = "a"}, {.name = "not in the index"}});
  EXPECT_THAT(test::refusal([&] { formats::check_shard(index, "one", {}); }),
              HasSubstr("one: the index puts tensor \"a\" here, but it is not there"));
  EXPECT_THAT(test::refusal([&] {
                formats::check_shard(index, "one", {{.name = "a"}, {.name = "b"}});
              }),
              HasSubstr("one: it holds tensor \"b\", which the index puts into two"));
}

}  // namespace
}  // namespace lockstep
