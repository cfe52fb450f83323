// `lockstep train` as a user runs it, alone and on ranks.
#include <chrono>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/process.h"

namespace lockstep {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

using Arguments = std::vector<std::string>;

constexpr const char* kProgram = LOCKSTEP_BIN_DIR "/lockstep";
constexpr const char* kRecipe = LOCKSTEP_SOURCE_DIR "/recipes/cats.toml";

// Two epochs of few pictures; 24 can be split over 1, 2, 3, 4 ranks.
const Arguments kShort = {"--set", "train.epochs=2",       "--set", "train.batch_size=24",
                          "--set", "data.num_pictures=48", "--set", "data.held_out_pictures=25"};

Output run(Arguments argv) {
  argv.insert(argv.begin(), kProgram);
  return run_process({.argv = argv}, Deadline::after(std::chrono::seconds(100)));
}

Output train(const Arguments& arguments) {
  Arguments argv = {"train"};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  return run(argv);
}

Output train_on_ranks(const Arguments& launch, const Arguments& arguments) {
  Arguments argv = {"run", "--no-prefix"};
  argv.insert(argv.end(), launch.begin(), launch.end());
  argv.insert(argv.end(), {"--", kProgram, "train", kRecipe});
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  return run(argv);
}

nlohmann::json short_run(int num_ranks) {
  Arguments arguments = kShort;
  arguments.emplace_back("--json");
  const Output output = train_on_ranks({"--nproc-per-node", std::to_string(num_ranks)}, arguments);
  EXPECT_TRUE(output.status.ok()) << output.status.text() << "\n" << output.err;
  return nlohmann::json::parse(output.out);
}

int count_lines_with(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++count;
  }
  return count;
}

TEST(TrainRun, EightRanksOnTwoNodesLearnAndHoldTheSameBits) {
  const Output output = train_on_ranks({"--local-nodes", "2", "--nproc-per-node", "4"}, {"--json"});
  ASSERT_TRUE(output.status.ok()) << output.status.text() << "\n" << output.err;
  const auto result = nlohmann::json::parse(output.out);
  EXPECT_EQ(result["ranks"], 8);
  EXPECT_EQ(result["nodes"], 2);
  EXPECT_EQ(result["same_bits"], true);
  EXPECT_EQ(result["parameter_hashes"].size(), 8u);
  EXPECT_GE(result["held_out_accuracy"], 0.95);
  EXPECT_EQ(result["held_out_pictures"], 400);
  RecordProperty("seconds", result["seconds"].dump());
}

TEST(TrainRun, RanksTakeTheStepsOfOneProcess) {
  const auto alone = short_run(1);
  for (const int num_ranks : {2, 3}) {
    const auto shared = short_run(num_ranks);
    EXPECT_EQ(shared["ranks"], num_ranks);
    EXPECT_EQ(shared["same_bits"], true);
    // The same global batches; only the order of the sums differs.
    EXPECT_NEAR(shared["loss"], alone["loss"], 1e-4) << num_ranks << " ranks";
  }
}

TEST(TrainRun, TheSameRunTwiceGivesTheSameBits) {
  const auto first = short_run(2);
  const auto again = short_run(2);
  EXPECT_EQ(first["parameter_hashes"], again["parameter_hashes"]);
  EXPECT_EQ(first["loss"], again["loss"]);
}

TEST(TrainRun, SaysWhoTheRanksAreHowItGoesAndHowItEnded) {
  const Output output = train_on_ranks({"--nproc-per-node", "2"}, kShort);
  ASSERT_TRUE(output.status.ok()) << output.status.text() << "\n" << output.err;
  EXPECT_THAT(output.out, HasSubstr("rank 0 of 2 on node 0, pid "));
  EXPECT_THAT(output.out, HasSubstr("rank 1 of 2 on node 0, pid "));
  EXPECT_THAT(output.out, HasSubstr("trains on 24 of 48 pictures"));
  EXPECT_EQ(count_lines_with(output.out, "epoch  1/2 "), 1);
  EXPECT_EQ(count_lines_with(output.out, "epoch  2/2 "), 1);
  EXPECT_EQ(count_lines_with(output.out, "all 2 ranks hold the same bits"), 1);
  EXPECT_THAT(output.out, HasSubstr("lockstep explain average"));
  EXPECT_THAT(output.err, IsEmpty());
}

TEST(TrainRun, ShowPrintsPicturesAndTrainsNothing) {
  const Output output = train({kRecipe, "--show"});
  ASSERT_TRUE(output.status.ok()) << output.err;
  EXPECT_THAT(output.out, StartsWith("a cat"));
  EXPECT_THAT(output.out, Not(HasSubstr("\x1b"))) << "no colours: not a terminal";
  EXPECT_EQ(count_lines_with(output.out, "\n"), 17);
}

TEST(TrainRun, HelpHasExamples) {
  const Output output = train({"--help"});
  EXPECT_TRUE(output.status.ok());
  EXPECT_THAT(output.out, HasSubstr("lockstep train recipes/cats.toml --show"));
}

TEST(TrainRun, AMistakeIsOneSentenceAndExitCode2) {
  const auto refuses = [](const Arguments& arguments, const char* reason) {
    const Output output = train(arguments);
    EXPECT_EQ(output.status.code, 2) << output.err;
    EXPECT_THAT(output.err, StartsWith("lockstep train: "));
    EXPECT_THAT(output.err, HasSubstr(reason));
    EXPECT_EQ(count_lines_with(output.err, "\n"), 1) << output.err;
    EXPECT_THAT(output.out, IsEmpty());
  };
  refuses({}, "RECIPE is required");
  refuses({"no/such.toml"}, "no/such.toml");
  refuses({kRecipe, "--set", "recipe=dogs"}, "there is no recipe \"dogs\"; known: cats");
  refuses({kRecipe, "--set", "train.epoch=3"}, "did you mean train.epochs?");
  refuses({kRecipe, "--set", "train.epochs=many"}, "train.epochs");
  refuses({kRecipe, "--sett", "train.epochs=3"}, "--help");
}

TEST(TrainRun, AMistakeOfAllRanksIsToldOnce) {
  const Output output = train_on_ranks({"--nproc-per-node", "3"}, {});
  EXPECT_EQ(output.status.code, 2) << output.err;
  // At the start of a line: the launcher's report quotes it, indented, if that rank failed first.
  EXPECT_EQ(count_lines_with("\n" + output.err,
                             "\nlockstep train: train.batch_size = 40 cannot be split "
                             "evenly over 3 ranks; use 39 or 42"),
            1)
      << output.err;
}

}  // namespace
}  // namespace lockstep
