// `lockstep bench gpu-parity` as a user runs it, on the CPU: the same comparison by the same code.

#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/process/process.h"
#include "bench/gpu/parity_result.h"

namespace lockstep {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

constexpr auto kPatience = std::chrono::seconds(100);  // only failures take it

base::Output bench(const std::vector<std::string>& arguments) {
  base::ProcessOptions options{.argv = {LOCKSTEP_BIN_DIR "/lockstep", "bench", "gpu-parity"}};
  options.argv.insert(options.argv.end(), arguments.begin(), arguments.end());
  return base::run_process(options, base::Deadline::after(kPatience));
}

TEST(BenchParity, OneAndTwoRanksLearnTheSame) {
  const base::Output output = bench(
      {"--device", "cpu", "--ranks", "1,2", "--steps", "4", "--models", "convnet,bert", "--json"});
  ASSERT_TRUE(output.status.ok()) << output.status.text() << "\n" << output.err;
  const json answer = json::parse(output.out);
  EXPECT_EQ(answer.at("device"), "cpu");
  EXPECT_EQ(answer.at("steps"), 4);
  EXPECT_TRUE(answer.at("reproducible").get<bool>());
  std::set<std::pair<std::string, int>> cases;
  for (const json& one : answer.at("cases")) {
    cases.emplace(one.at("model"), one.at("ranks"));
    EXPECT_LT(one.at("max_loss_difference_to_one_rank"), 1e-5) << one;
    EXPECT_LT(one.at("max_loss_difference_to_cpu"), 1e-5) << one;
    EXPECT_TRUE(one.at("same_bits_across_ranks").get<bool>()) << one;
    EXPECT_TRUE(one.at("shards_same_bits").get<bool>()) << one;
    EXPECT_NE(one.at("first_loss"), one.at("last_loss")) << one;
  }
  EXPECT_EQ(cases, (std::set<std::pair<std::string, int>>{
                       {"bert", 1}, {"bert", 2}, {"convnet", 1}, {"convnet", 2}}));
}

TEST(BenchParity, MistakesAreNamed) {
  const base::Output ranks = bench({"--ranks", "3"});
  EXPECT_EQ(ranks.status.code, 2);
  EXPECT_THAT(ranks.err, HasSubstr("--ranks"));
  const base::Output models = bench({"--models", "gtp2"});
  EXPECT_EQ(models.status.code, 2);
  EXPECT_THAT(models.err, HasSubstr("gtp2"));
}

TEST(BenchParity, WithoutAGpuItSaysWhatIsMissing) {
  const base::Output output = bench({"--ranks", "1", "--steps", "1"});
  if (output.status.ok()) {
    GTEST_SKIP() << "this machine has a GPU";
  }
  EXPECT_EQ(output.status.code, 2);
  EXPECT_THAT(output.err, HasSubstr("LOCKSTEP_DEVICE"));
}

// What is compared, on losses and bits that were made up.
TEST(BenchParity, DifferencesAreRelativeAndTheLargestCounts) {
  EXPECT_NEAR(largest_difference({2, 1.1, -4}, {2, 1, -4.2}), 0.1, 1e-12);
  EXPECT_GT(largest_difference({2, NAN}, {2, 1}), 1e30);
}

TEST(BenchParity, BitsThatDifferAreTold) {
  const ParityPlan plan{.models = {"mlp"}, .ranks = {1, 2}, .steps = 1};
  const ParityRun run{.losses = {1}, .bits = 7, .same_bits = true};
  ParityResult result{.device_name = "cpu",
                      .cpu = {{"mlp", run}},
                      .plain = {{{"mlp", 1}, run}, {{"mlp", 2}, run}},
                      .sharded = {{{"mlp", 1}, run}, {{"mlp", 2}, run}}};
  EXPECT_TRUE(is_reproducible(plan, result));
  result.sharded[{"mlp", 2}].bits = 8;
  EXPECT_FALSE(is_reproducible(plan, result));
  result.sharded[{"mlp", 2}] = run;
  result.plain[{"mlp", 2}].same_bits = false;
  EXPECT_FALSE(is_reproducible(plan, result));
  EXPECT_FALSE(json::parse(parity_json(plan, result)).at("reproducible").get<bool>());
  EXPECT_THAT(parity_table(plan, result), HasSubstr("NO"));
}

}  // namespace
}  // namespace lockstep
