#include "train/cats_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep {
namespace {

using testing::HasSubstr;
using testing::Not;

CatsResult result_of(std::vector<uint64_t> hashes) {
  CatsResult result;
  result.last = {.epoch = 3,
                 .num_epochs = 3,
                 .loss = 0.25,
                 .train_accuracy = 0.97,
                 .held_out_accuracy = 0.985};
  result.held_out_correct = 394;
  result.held_out_pictures = 400;
  result.num_parameters = 44'000;
  result.seconds = 12.5;
  for (size_t rank = 0; rank < hashes.size(); ++rank) {
    result.nodes.push_back(static_cast<int64_t>(rank / 2));
  }
  result.parameter_hashes = std::move(hashes);
  return result;
}

TEST(CatsReport, SaysWhoARankIs) {
  EXPECT_EQ(start_line({.rank = 3,
                        .num_ranks = 8,
                        .node = 1,
                        .pid = 42,
                        .rank_pictures = 50,
                        .num_pictures = 400}),
            "rank 3 of 8 on node 1, pid 42: trains on 50 of 400 pictures per epoch");
}

TEST(CatsReport, AnEpochIsOneLine) {
  EXPECT_EQ(
      epoch_line({.epoch = 4,
                  .num_epochs = 24,
                  .loss = 0.5,
                  .train_accuracy = 0.75,
                  .held_out_accuracy = 0.7125,
                  .pictures_per_s = 812.4,
                  .seconds = 3.14}),
      "epoch  4/24  loss 0.5000  training  75.0 %  held out  71.2 %    812 pictures/s    3.1 s");
}

TEST(CatsReport, EqualHashesAreTheSameBits) {
  const CatsResult result = result_of({0xab, 0xab, 0xab, 0xab});
  EXPECT_TRUE(result.same_bits());
  EXPECT_EQ(result.num_nodes(), 2);
  const std::string text = result_text(result, {.program = "bin/lockstep", .recipe = "r.toml"});
  EXPECT_THAT(text, HasSubstr("held-out accuracy 98.5 %: 394 of 400 pictures"));
  EXPECT_THAT(text, HasSubstr("rank 3   node 1   00000000000000ab\n"));
  EXPECT_THAT(text, HasSubstr("all 4 ranks hold the same bits"));
  EXPECT_THAT(text, HasSubstr("4 ranks on 2 nodes, 3 epochs, 12.5 s"));
  EXPECT_THAT(text, HasSubstr("bin/lockstep explain average"));
  EXPECT_THAT(text, HasSubstr("-- bin/lockstep train r.toml --set "));
}

TEST(CatsReport, OneDifferentHashIsSaid) {
  const CatsResult result = result_of({0xab, 0xab, 0xac});
  EXPECT_FALSE(result.same_bits());
  EXPECT_THAT(result_text(result, {}), HasSubstr("the ranks hold different models"));
  EXPECT_THAT(result_json(result), HasSubstr("\"same_bits\":false"));
}

TEST(CatsReport, OneRankIsComparedWithNobody) {
  const std::string text = result_text(result_of({1}), {});
  EXPECT_THAT(text, HasSubstr("one rank: nothing to compare"));
  EXPECT_THAT(text, HasSubstr("1 rank on 1 node, 3 epochs"));
  EXPECT_THAT(text, Not(HasSubstr("same bits")));
}

TEST(CatsReport, JsonIsOneLineThatAProgramCanRead) {
  const std::string json = result_json(result_of({0xab, 0xab}));
  EXPECT_THAT(json, Not(HasSubstr("\n")));
  EXPECT_THAT(json, HasSubstr("\"ranks\":2,\"nodes\":1,\"epochs\":3,"));
  EXPECT_THAT(json, HasSubstr("\"parameter_hashes\":[\"00000000000000ab\",\"00000000000000ab\"]"));
  EXPECT_THAT(json, HasSubstr("\"same_bits\":true"));
}

}  // namespace
}  // namespace lockstep
