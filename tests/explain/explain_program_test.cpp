// The sub-commands that need tensors hand over to a program beside lockstep. Here a script plays
// it: what is tested is who starts it, how often and with what.

#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/job.h"
#include "support/paths.h"

namespace lockstep::test {
namespace {

using ::testing::HasSubstr;
using Text = std::vector<std::string>;

class TorchCommand : public ::testing::Test {
 protected:
  TorchCommand() {
    std::filesystem::copy_file(lockstep_program(), program_);
    for (const char* program : {"lockstep-torch", "lockstep-explain", "lockstep-bench"}) {
      folder_.file(program, "#!/bin/sh\necho \"$* rank=$RANK of=$WORLD_SIZE\"\nexit ${CODE:-0}\n",
                   0755);
    }
  }

  base::Output run(Text arguments, std::map<std::string, std::string> env = {}) {
    arguments.insert(arguments.begin(), program_);
    env.try_emplace("RANK", "");
    env.try_emplace("WORLD_SIZE", "");
    env.try_emplace("LOCKSTEP_RANK", "");
    return base::run_process({.argv = arguments, .env = std::move(env)},
                             base::Deadline::after(kPatience));
  }

  TempFolder folder_;
  std::string program_ = folder_.path() + "/lockstep";
};

TEST_F(TorchCommand, TrainIsOneProcess) {
  const base::Output output = run({"train", "recipe.toml", "--set", "a=b c"}, {{"CODE", "9"}});
  EXPECT_EQ(output.out, "train recipe.toml --set a=b c rank= of=\n");
  EXPECT_EQ(output.status.code, 9);
}

TEST_F(TorchCommand, ExplainStartsFourRanks) {
  const base::Output output = run({"explain", "average"});
  EXPECT_EQ(output.status.code, 0) << output.err;
  EXPECT_EQ(lines(output.out).size(), 4u);
  EXPECT_EQ(count(output.out, "explain average rank=3 of=4\n"), 1);
}

TEST_F(TorchCommand, ExplainStartsARankPerRow) {
  for (const Text& flag :
       {Text{"--gradients", "[[1,2],[3,4],[5,6]]"}, Text{"--gradients=[[1],[2],[3]]"}}) {
    Text arguments{"explain", "average"};
    arguments.insert(arguments.end(), flag.begin(), flag.end());
    EXPECT_EQ(count(run(arguments).out, "of=3\n"), 3);
  }
}

TEST_F(TorchCommand, ExplainRefusesWhatIsNotRows) {
  for (const char* text : {"", "[[1,2],[3", "{}", "[]", "[1,2]", "7"}) {
    const base::Output output = run({"explain", "average", "--gradients", text});
    EXPECT_EQ(output.status.code, 2);
    EXPECT_THAT(output.err, HasSubstr("is not a JSON array"));
    EXPECT_EQ(lines(output.err).size(), 1u);
  }
  EXPECT_THAT(run({"explain", "average", "--gradients"}).err,
              HasSubstr("--gradients needs a value"));
}

TEST_F(TorchCommand, ExplainStartsNothingForHelpOrInsideAJob) {
  EXPECT_EQ(run({"explain", "--help"}).out, "explain --help rank= of=\n");
  EXPECT_EQ(run({"explain"}).out, "explain rank= of=\n");
  EXPECT_EQ(run({"explain", "average"}, {{"LOCKSTEP_RANK", "1"}}).out,
            "explain average rank= of=\n");
}

TEST_F(TorchCommand, AFailureSpeaksOfExplain) {
  const base::Output output = run({"explain", "average"}, {{"CODE", "5"}});
  EXPECT_EQ(output.status.code, 5);
  EXPECT_THAT(output.err, HasSubstr("lockstep explain: rank "));
}

TEST_F(TorchCommand, BenchIsAProgramOfItsOwn) {
  EXPECT_THAT(run({"bench", "data"}).out, HasSubstr("bench data {"));
}

struct Missing {
  Text arguments;
  std::string program;
};

const Missing kMissing[] = {
    {{"train", "x"}, "lockstep-torch"},           {{"eval", "x"}, "lockstep-torch"},
    {{"bench", "data"}, "lockstep-bench"},        {{"bench", "allreduce"}, "lockstep-bench"},
    {{"explain", "average"}, "lockstep-explain"}, {{"explain", "--help"}, "lockstep-explain"}};

void expect_missing(const base::Output& output, const Missing& missing, const char* way) {
  EXPECT_EQ(output.status.code, 2);
  EXPECT_THAT(output.err, HasSubstr("/" + missing.program + " is missing"));
  EXPECT_THAT(output.err, HasSubstr(way));
  EXPECT_EQ(lines(output.err).size(), 1u);
}

TEST_F(TorchCommand, AfterMakeTrainOneSentenceSaysHowToBuildTheRest) {
  std::filesystem::remove(folder_.path() + "/lockstep-bench");
  std::filesystem::remove(folder_.path() + "/lockstep-explain");
  for (const Missing& missing : kMissing) {
    if (missing.program != "lockstep-torch") {
      expect_missing(run(missing.arguments), missing, "`make build` builds the rest");
    }
  }
}

TEST_F(TorchCommand, WithoutLibtorchOneSentence) {
  for (const char* program : {"lockstep-torch", "lockstep-bench", "lockstep-explain"}) {
    std::filesystem::remove(folder_.path() + "/" + program);
  }
  for (const Missing& missing : kMissing) {
    expect_missing(run(missing.arguments), missing, "make setup");
  }
}

TEST_F(TorchCommand, DoctorAsksItForItsVersion) {
  folder_.file("lockstep-torch", "#!/bin/sh\necho libtorch 2.11.0\necho Gloo inside\n", 0755);
  const base::Output output = run({"doctor"});
  EXPECT_THAT(output.out, HasSubstr("libtorch 2.11.0"));
  EXPECT_THAT(output.out, HasSubstr("Gloo inside"));
}

TEST(TorchProgram, TellsWhatItRunsOn) {
  const base::Output output =
      base::run_process({.argv = {testing_support::in_build("lockstep-torch"), "--version"}},
                        base::Deadline::after(kPatience));
  EXPECT_TRUE(output.status.ok()) << output.err;
  for (const char* part : {"libtorch 2.11.0", "Gloo available", "CPU capability"}) {
    EXPECT_THAT(output.out, HasSubstr(part));
  }
}

}  // namespace
}  // namespace lockstep::test
