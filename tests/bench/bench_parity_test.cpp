// `lockstep bench gpu-parity` as a user runs it, on the CPU: the same comparison by the same code.

#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/env.h"
#include "base/process/process.h"
#include "base/unique_fd.h"
#include "bench/gpu/parity_result.h"
#include "support/paths.h"
#include "support/service.h"
#include "support/temp_folder.h"

namespace lockstep {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

constexpr auto kPatience = std::chrono::seconds(100);  // only failures take it

base::Output bench(const std::vector<std::string>& arguments) {
  base::ProcessOptions options{
      .argv = {testing_support::in_build("lockstep"), "bench", "gpu-parity"}};
  options.argv.insert(options.argv.end(), arguments.begin(), arguments.end());
  return base::run_process(options, base::Deadline::after(kPatience));
}

TEST(BenchParity, OneAndTwoRanksLearnTheSame) {
  const base::Output output = bench(
      {"--device", "cpu", "--ranks", "1,2", "--steps", "9", "--models", "convnet,bert", "--json"});
  ASSERT_TRUE(output.status.ok()) << output.status.text() << "\n" << output.err;
  const json answer = json::parse(output.out);
  EXPECT_EQ(answer.at("device"), "cpu");
  EXPECT_EQ(answer.at("steps"), 9);
  EXPECT_TRUE(answer.at("reproducible").get<bool>());
  std::set<std::pair<std::string, int>> cases;
  for (const json& one : answer.at("cases")) {
    cases.emplace(one.at("model"), one.at("ranks"));
    EXPECT_LT(one.at("max_loss_difference_to_one_rank"), 1e-5) << one;
    EXPECT_LT(one.at("max_loss_difference_to_cpu"), 1e-5) << one;
    EXPECT_TRUE(one.at("same_bits_across_ranks").get<bool>()) << one;
    EXPECT_TRUE(one.at("shards_same_bits").get<bool>()) << one;
    EXPECT_GT(one.at("loss_drop"), 1e-4) << one;
  }
  EXPECT_EQ(cases, (std::set<std::pair<std::string, int>>{
                       {"bert", 1}, {"bert", 2}, {"convnet", 1}, {"convnet", 2}}));
}

// What --dump wrote: {name: [shape]}, and the losses.
struct Dump {
  std::map<std::string, std::vector<int64_t>> shapes;
  std::vector<double> losses;
};

Dump read_dump(const std::filesystem::path& path) {
  const std::string file = base::read_file(path, 64u << 20);
  uint64_t size = 0;
  std::memcpy(&size, file.data(), sizeof(size));
  Dump dump;
  const json header = json::parse(file.substr(sizeof(size), size));
  for (const auto& [name, tensor] : header.items()) {
    if (name == "__metadata__") {
      continue;
    }
    dump.shapes[name] = tensor.at("shape").get<std::vector<int64_t>>();
    if (name == "losses") {
      dump.losses.resize(static_cast<size_t>(dump.shapes[name].at(0)));
      std::memcpy(dump.losses.data(),
                  file.data() + sizeof(size) + size + tensor.at("data_offsets").at(0).get<size_t>(),
                  dump.losses.size() * sizeof(double));
    }
  }
  return dump;
}

TEST(BenchParity, DumpsWhatAnotherProgramNeedsToTrainTheSame) {
  const test::TempFolder folder;
  const std::string place = folder.path() + "/made/here";
  const base::Output output = bench({"--device", "cpu", "--ranks", "2", "--steps", "3", "--models",
                                     "convnet,mlp", "--json", "--dump", place});
  ASSERT_TRUE(output.status.ok()) << output.status.text() << "\n" << output.err;
  const json first = json::parse(output.out).at("cases").at(0);
  const Dump dump = read_dump(place + "/convnet.safetensors");
  using Shape = std::vector<int64_t>;
  EXPECT_EQ(dump.shapes.at("inputs"), (Shape{3, 8, 3, 32, 32}));
  EXPECT_EQ(dump.shapes.at("targets"), (Shape{3, 8}));
  EXPECT_EQ(dump.shapes.at("initial.net.conv2.weight"), (Shape{32, 16, 3, 3}));
  EXPECT_EQ(dump.shapes.size(), 3 + 10u);  // five layers with weight and bias
  ASSERT_EQ(dump.losses.size(), 3u);
  EXPECT_EQ(dump.losses.front(), first.at("first_loss").get<double>());
  EXPECT_EQ(dump.losses.back(), first.at("last_loss").get<double>());
  EXPECT_EQ(read_dump(place + "/mlp.safetensors").shapes.at("initial.layers.5.bias"), Shape{1024});
}

std::string python() {
  return base::Env().text("LOCKSTEP_TEST_PYTHON").value_or("python3");
}

std::optional<std::string> python_refusal() {
  const base::Output output =
      base::run_process({.argv = {python(), "-c", "import safetensors.torch, torch, transformers"}},
                        base::Deadline::after(kPatience));
  return output.status.ok()
             ? std::nullopt
             : std::optional(python() + " has no torch, transformers and safetensors");
}

TEST(BenchParity, PyTorchLearnsTheSame) {
  LOCKSTEP_NEEDS("python-transformers", python_refusal());
  const base::Output output = base::run_process(
      {.argv = {python(), "-B", testing_support::in_tree("bench/gpu_parity.py"), "--lockstep",
                testing_support::in_build("lockstep"), "--device", "cpu", "--steps", "5"}},
      base::Deadline::after(2 * kPatience));
  ASSERT_TRUE(output.status.ok()) << output.out << output.err;
  const json cases = json::parse(output.out).at("cases");
  EXPECT_EQ(cases.size(), 4u);
  for (const json& one : cases) {
    EXPECT_LT(one.at("max_loss_difference_to_pytorch"), 1e-5) << one;
  }
}

TEST(BenchParity, MistakesAreNamed) {
  const base::Output folder = bench({"--device", "cpu", "--dump", "/proc/none/x"});
  EXPECT_EQ(folder.status.code, 2);
  EXPECT_THAT(folder.err, HasSubstr("--dump /proc/none/x: the folder cannot be made"));
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
