// `lockstep train` as a user runs it, alone and on ranks.
#include <chrono>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/process/process.h"
#include "base/unique_fd.h"
#include "support/paths.h"
#include "support/temp_folder.h"

namespace lockstep {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

using Arguments = std::vector<std::string>;

const std::string kProgram = testing_support::in_build("lockstep");
const std::string kRecipe = testing_support::in_tree("recipes/cats.toml");

// Two epochs of few pictures; 24 can be split over 1, 2, 3, 4 ranks.
const Arguments kShort = {"--set", "train.epochs=2",       "--set", "train.batch_size=24",
                          "--set", "data.num_pictures=48", "--set", "data.held_out_pictures=25"};

base::Output run(Arguments argv) {
  argv.insert(argv.begin(), kProgram);
  return base::run_process({.argv = argv}, base::Deadline::after(std::chrono::seconds(100)));
}

base::Output train(const Arguments& arguments) {
  Arguments argv = {"train"};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  return run(argv);
}

base::Output train_on_ranks(const Arguments& launch, const Arguments& arguments) {
  Arguments argv = {"run", "--no-prefix"};
  argv.insert(argv.end(), launch.begin(), launch.end());
  argv.insert(argv.end(), {"--", kProgram, "train", kRecipe});
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  return run(argv);
}

nlohmann::json short_run(int num_ranks) {
  Arguments arguments = kShort;
  arguments.emplace_back("--json");
  const base::Output output =
      train_on_ranks({"--nproc-per-node", std::to_string(num_ranks)}, arguments);
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
  const base::Output output =
      train_on_ranks({"--local-nodes", "2", "--nproc-per-node", "4"}, {"--json"});
  ASSERT_TRUE(output.status.ok()) << output.status.text() << "\n" << output.err;
  const auto result = nlohmann::json::parse(output.out);
  EXPECT_EQ(result["ranks"], 8);
  EXPECT_EQ(result["nodes"], 2);
  EXPECT_EQ(result["same_bits"], true);
  EXPECT_EQ(result["parameter_hashes"].size(), 8u);
  EXPECT_GE(result["held_out_accuracy"], 0.97);
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
  const base::Output output = train_on_ranks({"--nproc-per-node", "2"}, kShort);
  ASSERT_TRUE(output.status.ok()) << output.status.text() << "\n" << output.err;
  EXPECT_THAT(output.out, HasSubstr("rank 0 of 2 on node 0, pid "));
  EXPECT_THAT(output.out, HasSubstr("rank 1 of 2 on node 0, pid "));
  EXPECT_THAT(output.out, HasSubstr("trains on 24 of 48 pictures"));
  EXPECT_EQ(count_lines_with(output.out, "epochs = 2\n"), 1) << "the settings, once";
  EXPECT_EQ(count_lines_with(output.out, "step    2/4  epoch  1 "), 1);
  EXPECT_EQ(count_lines_with(output.out, "step    4/4  epoch  2 "), 1);
  EXPECT_EQ(count_lines_with(output.out, "all 2 ranks hold the same bits"), 1);
  EXPECT_THAT(output.out, HasSubstr("lockstep explain average"));
  EXPECT_THAT(output.err, IsEmpty());
}

TEST(TrainRun, EightShardsGiveTheSameBitsOnAnyNumberOfRanks) {
  nlohmann::json first;
  for (const int ranks : {1, 2, 4, 8}) {
    const base::Output output =
        run({"run",
             "--no-prefix",
             "--nproc-per-node",
             std::to_string(ranks),
             "--",
             kProgram,
             "train",
             testing_support::in_tree("recipes/mytransformer.toml"),
             "--json",
             "--shards",
             "8",
             "--set",
             "data.text=" + testing_support::in_tree("recipes/data/handbook.txt"),
             "--set",
             "model.hidden_size=16",
             "--set",
             "model.ffn_size=32",
             "--set",
             "data.sequence_length=32",
             "--set",
             "train.max_steps=12"});
    ASSERT_TRUE(output.status.ok()) << output.err;
    const auto result = nlohmann::json::parse(output.out);
    EXPECT_EQ(result["same_bits"], true);
    first = ranks == 1 ? result : first;
    for (const char* field : {"loss", "held_out_loss"}) {
      EXPECT_EQ(result[field], first[field]) << ranks << " ranks: " << field;
    }
    EXPECT_EQ(result["parameter_hashes"][0], first["parameter_hashes"][0]) << ranks << " ranks";
  }
}

// The golden is PyTorch's own run: tests/parity/mytransformer_train.py.
TEST(TrainRun, MyTransformerLearnsWhatItLearnsInPyTorch) {
  const auto golden = nlohmann::json::parse(
      base::read_file(testing_support::in_tree("tests/train/goldens/mytransformer.json")));
  // The last tenth of the sequences judges, as in the script.
  const std::string text = base::read_file(testing_support::in_tree("recipes/data/handbook.txt"));
  const auto time = golden["settings"]["data.sequence_length"].get<size_t>();
  const size_t num_all = text.size() / time;
  const size_t num_trained =
      num_all - static_cast<size_t>(std::ceil(static_cast<double>(num_all) * 0.1));
  const test::TempFolder folder;
  const std::string train = folder.file("train.txt", text.substr(0, num_trained * time));
  const std::string judge = folder.file("judge.txt", text.substr(num_trained * time));
  Arguments argv = {"run",
                    "--no-prefix",
                    "--nproc-per-node",
                    "2",
                    "--",
                    kProgram,
                    "train",
                    testing_support::in_tree("recipes/mytransformer.toml"),
                    "--json",
                    "--set",
                    "data.text=" + train,
                    "--set",
                    "data.held_out=" + judge};
  for (const auto& [key, value] : golden["settings"].items()) {
    argv.insert(argv.end(), {"--set", key + "=" + value.dump()});
  }
  const base::Output output = run(argv);
  ASSERT_TRUE(output.status.ok()) << output.err;
  const auto result = nlohmann::json::parse(output.out);
  const std::vector<double> losses = golden["losses"];
  const double last_ten = std::accumulate(losses.end() - 10, losses.end(), 0.0) / 10;
  EXPECT_EQ(result["steps"], losses.size());
  EXPECT_NEAR(result["loss"], last_ten, 0.01 * last_ten);
  EXPECT_NEAR(result["held_out_loss"], golden["held_out_loss"],
              0.01 * golden["held_out_loss"].get<double>());
  EXPECT_LT(last_ten, 0.8 * losses.front()) << "it learned something";
  RecordProperty("difference", std::to_string(result["held_out_loss"].get<double>() -
                                              golden["held_out_loss"].get<double>()));
}

TEST(TrainRun, ADryRunMakesOneStepAndSavesNothing) {
  const test::TempFolder folder;
  Arguments arguments = {
      kRecipe, "--dry-run",         "--json", "--set", "checkpoint.dir=" + folder.at("runs"),
      "--set", "checkpoint.every=1"};
  const base::Output output = train(arguments);
  ASSERT_TRUE(output.status.ok()) << output.err;
  EXPECT_EQ(nlohmann::json::parse(output.out)["steps"], 1);
  EXPECT_FALSE(std::filesystem::exists(folder.at("runs")));
}

TEST(TrainRun, AnEndThatCannotBeSavedIsAFailureAndNotTheEndOfTheTraining) {
  const test::TempFolder folder;
  folder.file("step-00000004", "in the way");
  Arguments arguments = {kRecipe, "--json", "--set", "checkpoint.dir=" + folder.path()};
  arguments.insert(arguments.end(), kShort.begin(), kShort.end());
  const base::Output output = train(arguments);
  EXPECT_EQ(output.status.code, 1);
  EXPECT_EQ(nlohmann::json::parse(output.out)["steps"], 4);
  EXPECT_THAT(output.err, HasSubstr("lockstep train: the end of this run is not saved: "));
}

TEST(TrainRun, ASaveThatFailsIsToldOnce) {
  const test::TempFolder folder;
  folder.file("step-00000004", "in the way");
  Arguments arguments = {kRecipe, "--set", "checkpoint.dir=" + folder.path()};
  arguments.insert(arguments.end(), kShort.begin(), kShort.end());
  const base::Output output = train(arguments);
  EXPECT_EQ(output.status.code, 1);
  EXPECT_EQ(count_lines_with(output.out + output.err, ": Not a directory"), 1)
      << output.out << output.err;
}

TEST(TrainRun, APlaceThatCannotBeWrittenIsFoundBeforeTheFirstStep) {
  const test::TempFolder folder;
  folder.file("file", "in the way");
  for (const std::string& place : {std::string("/proc"), folder.at("file/runs")}) {
    for (const char* flag : {"--dry-run", "--json"}) {
      Arguments arguments = {kRecipe, flag, "--set", "checkpoint.dir=" + place};
      arguments.insert(arguments.end(), kShort.begin(), kShort.end());
      const base::Output output = train(arguments);
      EXPECT_EQ(output.status.code, 1) << place << " " << flag;
      EXPECT_THAT(output.err, StartsWith("lockstep train: checkpoint: cannot "));
      EXPECT_THAT(output.err, HasSubstr("checkpoint.dir"));
      EXPECT_THAT(output.out, Not(HasSubstr("step  "))) << "not a step was made";
    }
  }
}

TEST(TrainRun, MovesToMoreRanksOnlyWithConsent) {
  const test::TempFolder folder;
  Arguments arguments = {"--set", "checkpoint.dir=" + folder.path(), "--json"};
  arguments.insert(arguments.end(), kShort.begin(), kShort.end());
  Arguments alone = {kRecipe, "--set", "train.max_steps=2"};
  alone.insert(alone.end(), arguments.begin(), arguments.end());
  ASSERT_TRUE(train(alone).status.ok());
  const base::Output refused = train_on_ranks({"--nproc-per-node", "2"}, arguments);
  EXPECT_EQ(refused.status.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("--allow-other-bits"));
  arguments.emplace_back("--allow-other-bits");
  const base::Output output = train_on_ranks({"--nproc-per-node", "2"}, arguments);
  ASSERT_TRUE(output.status.ok()) << output.err;
  EXPECT_EQ(nlohmann::json::parse(output.out)["steps"], 4);
  EXPECT_EQ(count_lines_with(output.err, "goes on with 2 shards instead of 1"), 1)
      << "once, not by every rank: " << output.err;
}

TEST(TrainRun, ShowPrintsPicturesAndTrainsNothing) {
  const base::Output output = train({kRecipe, "--show"});
  ASSERT_TRUE(output.status.ok()) << output.err;
  EXPECT_THAT(output.out, StartsWith("a cat"));
  EXPECT_THAT(output.out, Not(HasSubstr("\x1b"))) << "no colours: not a terminal";
  EXPECT_EQ(count_lines_with(output.out, "\n"), 17);
}

TEST(TrainRun, HelpHasExamples) {
  const base::Output output = train({"--help"});
  EXPECT_TRUE(output.status.ok());
  EXPECT_THAT(output.out, HasSubstr("lockstep train recipes/cats.toml --show"));
}

TEST(TrainRun, AMistakeIsOneSentenceAndExitCode2) {
  const auto refuses = [](const Arguments& arguments, const char* reason) {
    const base::Output output = train(arguments);
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
  const base::Output output = train_on_ranks({"--nproc-per-node", "3"}, {});
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
