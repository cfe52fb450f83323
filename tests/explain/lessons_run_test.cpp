// The other lessons on real ranks; what they report against what is computed here.

#include <numeric>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "explain/explain_run.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using List = std::vector<double>;
using Rows = std::vector<List>;
using Parts = std::vector<std::vector<int>>;

// Runs the lesson in Korean and looks for its title and its verdict.
void expect_told_in_korean(const std::string& lesson, const std::string& verdict) {
  const base::Output& output = explain({lesson, "--lang", "ko"});
  EXPECT_TRUE(output.status.ok()) << output.err;
  EXPECT_TRUE(output.out.starts_with(lesson + ": ")) << output.out;
  EXPECT_THAT(output.out, HasSubstr(verdict));
}

TEST(ExplainFeatures, SumsAndAveragesWhatOneRankEachFound) {
  const nlohmann::json data = explain_json({"features"});
  const List found = {0.8, 0.6, 0.7, 0.5};
  EXPECT_EQ(data["sum"].get<List>(), found);
  for (size_t rank = 0; rank < found.size(); ++rank) {
    List row(found.size(), 0.0);
    row[rank] = found[rank];
    EXPECT_EQ(data["gradients"][rank].get<List>(), row);
    for (size_t i = 0; i < found.size(); ++i) {
      EXPECT_NEAR(data["average"][i].get<double>(), found[i] / 4, 1e-12);
      EXPECT_NEAR(data["weights_after"][rank][i].get<double>(), found[i] / 4, 1e-12);
      EXPECT_NEAR(data["weights_after_scaled_lr"][rank][i].get<double>(), found[i], 1e-12);
    }
  }
  EXPECT_EQ(data["same_bits"], true);
  expect_told_in_korean("features", "모든 랭크의 가중치가 같습니다");
}

TEST(ExplainSync, FourModelsWithoutAndOneWith) {
  const nlohmann::json data = explain_json({"sync"});
  const Rows without = data["without_sync"];
  const Rows with = data["with_sync"];
  ASSERT_EQ(without.size(), 4u);
  ASSERT_EQ(with.size(), 4u);
  EXPECT_EQ(std::set<List>(without.begin(), without.end()).size(), 4u);
  EXPECT_EQ(std::set<List>(with.begin(), with.end()).size(), 1u);
  EXPECT_EQ(data["same_bits_with_sync"], true);
  EXPECT_EQ(data["same_bits_without_sync"], false);
  EXPECT_LT(data["difference_from_one_process"].get<double>(), 1e-9);
  // The common model saw all pictures, so no lonely one beats it on them.
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_LT(data["loss_with_sync"][rank], data["loss_without_sync"][rank]) << "rank " << rank;
    EXPECT_EQ(data["path"]["with_sync"][rank].front(), data["start"]);
    EXPECT_EQ(data["path"]["without_sync"][rank].back(), data["without_sync"][rank]);
  }
  expect_told_in_korean("sync", "서로 다른 모델의 수: 4");
}

TEST(ExplainSplit, DealsBlocksAndStrides) {
  const nlohmann::json data = explain_json({"split"});
  for (size_t deal = 0; deal < 2; ++deal) {
    const int pictures = deal == 0 ? 400 : 100;
    const Parts blocks = data["blocks"][deal]["parts"];
    const Parts stride = data["stride"][deal]["parts"];
    EXPECT_EQ(data["blocks"][deal]["each_once"], true);
    EXPECT_EQ(data["stride"][deal]["each_once"], true);
    for (int rank = 0; rank < 4; ++rank) {
      for (int i = 0; i < pictures / 4; ++i) {
        ASSERT_EQ(blocks[rank][i], rank * pictures / 4 + i + 1);
        ASSERT_EQ(stride[rank][i], rank + 4 * i);
      }
    }
  }
  expect_told_in_korean("split", "두 번 읽는 사진: 0, 1.");
}

TEST(ExplainSplit, TheSamplerDealsEachPictureOnceInEveryEpoch) {
  const nlohmann::json sampler = explain_json({"split"})["sampler"];
  EXPECT_EQ(sampler["without_shuffle_is_stride"], true);
  EXPECT_NE(sampler["epoch_0"]["parts"], sampler["epoch_1"]["parts"]);
  for (const char* epoch : {"epoch_0", "epoch_1"}) {
    std::multiset<int> dealt;
    for (const auto& part : sampler[epoch]["parts"].get<Parts>()) {
      EXPECT_EQ(part.size(), 25u);
      dealt.insert(part.begin(), part.end());
    }
    std::vector<int> all(100);
    std::iota(all.begin(), all.end(), 0);
    EXPECT_TRUE(std::equal(dealt.begin(), dealt.end(), all.begin(), all.end())) << epoch;
  }
}

TEST(ExplainSplit, AnUnevenDealWrapsAroundOrDropsTheTail) {
  const nlohmann::json uneven = explain_json({"split"})["uneven"];
  EXPECT_EQ(uneven["parts"].get<Parts>(), (Parts{{0, 4, 8}, {1, 5, 9}, {2, 6, 0}, {3, 7, 1}}));
  EXPECT_EQ(uneven["dealt_twice"], (std::vector<int>{0, 1}));
  EXPECT_EQ(uneven["drop_last_parts"].get<Parts>(), (Parts{{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
  EXPECT_EQ(uneven["left_out"], (std::vector<int>{8, 9}));
}

TEST(ExplainReplicate, ABroadcastMakesFourModelsOne) {
  const nlohmann::json data = explain_json({"replicate"});
  const auto distinct = [&](const char* key) {
    return std::set<nlohmann::json>(data[key].begin(), data[key].end()).size();
  };
  EXPECT_EQ(distinct("hashes_before"), 4u);
  EXPECT_EQ(distinct("weights_before"), 4u);
  EXPECT_EQ(distinct("hashes_after"), 1u);
  EXPECT_EQ(distinct("weights_after"), 1u);
  EXPECT_EQ(data["weights_after"][3], data["weights_before"][0]);
  EXPECT_EQ(data["hashes_after"][3], data["hashes_before"][0]);
  EXPECT_EQ(data["elements"], (std::vector<size_t>(4, data["weights_after"][0].size())));
  EXPECT_EQ(data["same_bits_before"], false);
  EXPECT_EQ(data["same_bits_after"], true);
  EXPECT_EQ(data["same_bits_before_ddp"], false);
  EXPECT_EQ(data["same_bits_after_ddp"], true);
  expect_told_in_korean("replicate", "모든 랭크가 랭크 0의 모델을 가지고 있습니다");
}

TEST(ExplainScratch, EveryRankMakesTheSameModelAlone) {
  const nlohmann::json data = explain_json({"scratch"});
  const std::vector<int> zeros(4, 0);
  EXPECT_EQ(data["seed"], 42);
  EXPECT_EQ(data["nodes"], (std::vector<int>{0, 0, 1, 1}));
  EXPECT_EQ(data["read_calls"], zeros);
  EXPECT_EQ(data["network_bytes_before_ddp"], zeros);
  const std::set<nlohmann::json> hashes(data["hashes_before_communication"].begin(),
                                        data["hashes_before_communication"].end());
  EXPECT_EQ(hashes.size(), 1u);
  EXPECT_EQ(data["hashes_after_ddp"], data["hashes_before_communication"]);
  EXPECT_EQ(data["same_bits"], true);
  const int64_t model_bytes = data["parameters"].get<int64_t>() * 4;
  // The broadcast crosses to the other node once, whatever the number of ranks there.
  EXPECT_NEAR(data["ddp_network_bytes"].get<double>() / model_bytes, 1, 0.01);
  for (const int64_t bytes : data["memory_bytes"].get<std::vector<int64_t>>()) {
    EXPECT_GE(bytes, model_bytes * 0.99);
    EXPECT_LT(bytes, model_bytes * 1.2);
  }
  expect_told_in_korean("scratch", "스토리지 읽기 합계: 0.");
}

TEST(ExplainPretrained, CountsWhatEachWayReads) {
  const nlohmann::json data = explain_json({"pretrained"});
  const auto total = [](const nlohmann::json& counts) {
    const std::vector<int64_t> numbers = counts;
    return std::accumulate(numbers.begin(), numbers.end(), int64_t{0});
  };
  const auto file_bytes = data["file_bytes"].get<double>();
  ASSERT_EQ(data["modes"].size(), 3u);
  const nlohmann::json &each = data["modes"][0], &rank0 = data["modes"][1],
                       &cooperative = data["modes"][2];
  EXPECT_EQ(each["mode"], "each");
  EXPECT_EQ(rank0["mode"], "rank0");
  EXPECT_EQ(cooperative["mode"], "cooperative");
  EXPECT_NEAR(total(each["bytes_read"]) / file_bytes, 4, 0.05);
  EXPECT_NEAR(total(rank0["bytes_read"]) / file_bytes, 1, 0.02);
  EXPECT_NEAR(total(cooperative["bytes_read"]) / file_bytes, 1, 0.02);
  EXPECT_EQ(rank0["bytes_read"][1], 0);
  for (const int64_t bytes : cooperative["bytes_read"].get<std::vector<int64_t>>()) {
    EXPECT_NEAR(bytes / file_bytes, 0.25, 0.05);
  }
  EXPECT_LT(total(each["network_bytes"]), 1000);  // that all went well
  // The other node gets every byte once, whoever read it.
  EXPECT_NEAR(total(rank0["network_bytes"]) / file_bytes, 1, 0.1);
  EXPECT_NEAR(total(cooperative["network_bytes"]) / file_bytes, 1, 0.1);
  for (const nlohmann::json& mode : data["modes"]) {
    EXPECT_EQ(mode["hashes"], each["hashes"]);
    for (const int64_t bytes : mode["extra_memory_bytes"].get<std::vector<int64_t>>()) {
      EXPECT_LT(bytes, int64_t{64} << 20) << mode["mode"];
    }
  }
  EXPECT_EQ(data["same_bits"], true);
  expect_told_in_korean("pretrained", "서로 다른 모델의 수: 1.");
}

}  // namespace
}  // namespace lockstep
