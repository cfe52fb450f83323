// `lockstep bench gpu --kernels` as a user runs it, on the CPU: the same cases, by the twins.

#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/process/process.h"
#include "support/paths.h"

namespace lockstep {
namespace {

base::Output bench_kernels(const std::vector<std::string>& arguments) {
  base::ProcessOptions options{.argv = {testing_support::in_build("lockstep"), "bench", "gpu"}};
  options.argv.insert(options.argv.end(), arguments.begin(), arguments.end());
  return base::run_process(options, base::Deadline::after(std::chrono::seconds(100)));
}

TEST(BenchGpu, TellsOfEveryKernel) {
  const base::Output output =
      bench_kernels({"--kernels", "--device", "cpu", "--tokens", "33", "--repeats", "3", "--json"});
  ASSERT_TRUE(output.status.ok()) << output.status.text() << "\n" << output.err;
  const nlohmann::json answer = nlohmann::json::parse(output.out);
  EXPECT_GT(answer.at("copy_gb_per_s"), 0);
  std::set<std::string> names;
  for (const nlohmann::json& one : answer.at("kernels")) {
    names.insert(one.at("name"));
    EXPECT_EQ(one.at("max_error"), 0) << one;  // a twin is compared with itself
    EXPECT_EQ(one.at("times_us").size(), 3u) << one;
    EXPECT_GT(one.at("bytes"), 0) << one;
    EXPECT_GT(one.at("time_us"), 0) << one;
    // Both are rounded when they are printed, to 0.1 and to 0.01.
    const double time_us = one.at("time_us");
    const double gb_per_s = 1e-3 * one.at("bytes").get<double>() / time_us;
    EXPECT_NEAR(one.at("gb_per_s"), gb_per_s, 0.06 + gb_per_s * 0.006 / time_us) << one;
    EXPECT_FALSE(one.at("shape").get<std::string>().empty());
  }
  for (const char* name :
       {"norm_forward", "norm_backward_dropout", "gelu_erf_backward", "cross_entropy",
        "embedding_backward", "global_norm", "adamw", "sgd", "batch_norm_backward"}) {
    EXPECT_TRUE(names.contains(name)) << name;
  }
}

TEST(BenchGpu, MistakesAreNamed) {
  const base::Output nothing = bench_kernels({});
  EXPECT_EQ(nothing.status.code, 2);
  EXPECT_THAT(nothing.err, ::testing::HasSubstr("--kernels"));
  const base::Output unknown = bench_kernels({"--kernels", "--device", "cpu", "--only", "adam"});
  EXPECT_EQ(unknown.status.code, 2);
  EXPECT_THAT(unknown.err, ::testing::HasSubstr("there are norm_forward, "));
}

}  // namespace
}  // namespace lockstep
