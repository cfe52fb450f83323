// SIGINT and SIGTERM to `lockstep train`, alone and under the launcher: the first saves and ends,
// the second ends at once. And two runs that were given one folder.
#include <filesystem>
#include <signal.h>
#include <sys/mman.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/process/process.h"
#include "base/unique_fd.h"
#include "support/job.h"
#include "support/paths.h"

namespace lockstep::test {
namespace {

using ::testing::HasSubstr;

using Arguments = std::vector<std::string>;

const std::string kRecipe = testing_support::in_tree("recipes/cats.toml");

// More steps than anybody waits for.
Arguments endless(const std::string& folder) {
  return {lockstep_program(),
          "train",
          kRecipe,
          "--set",
          "checkpoint.dir=" + folder,
          "--set",
          "train.epochs=100000",
          "--set",
          "train.batch_size=8",
          "--set",
          "train.log_every=1",
          "--set",
          "train.schedule=constant",
          "--set",
          "data.num_pictures=64",
          "--set",
          "data.held_out_pictures=8"};
}

// One step that takes longer than anybody waits for.
Arguments one_long_step() {
  return {lockstep_program(),
          "train",
          testing_support::in_tree("recipes/mytransformer.toml"),
          "--set",
          "data.text=" + testing_support::in_tree("recipes/data/handbook.txt"),
          "--set",
          "train.batch_size=16",
          "--set",
          "train.accumulate=16",
          "--set",
          "model.hidden_size=1024",
          "--set",
          "model.ffn_size=8192",
          "--set",
          "data.sequence_length=512",
          "--set",
          "model.max_positions=512"};
}

// A program whose output is read while it runs.
class Program {
 public:
  explicit Program(const Arguments& argv)
      : out_(::memfd_create("out", MFD_CLOEXEC)),
        err_(::memfd_create("err", MFD_CLOEXEC)),
        process_({.argv = argv, .stdout_fd = out_.get(), .stderr_fd = err_.get()}) {}

  std::string out() const { return text_of(out_); }
  std::string err() const { return text_of(err_); }
  bool wait_for_out(const std::string& part) const {
    return wait_until([&] { return out().find(part) != std::string::npos; });
  }
  bool wait_for_err(const std::string& part) const {
    return wait_until([&] { return err().find(part) != std::string::npos; });
  }
  void kill(int signal) { process_.kill(signal); }
  base::ExitStatus wait() { return process_.wait(base::Deadline::after(kPatience)).value(); }

 private:
  static std::string text_of(const base::UniqueFd& fd) {
    return base::read_file(fmt::format("/proc/self/fd/{}", fd.get()));
  }

  base::UniqueFd out_, err_;
  base::Process process_;
};

// The checkpoint of the last step that was told of.
std::string last_step(const std::string& out) {
  std::string last;
  for (const std::string& line : lines(out)) {
    if (line.starts_with("step ") && line.find('/') < line.find("  epoch")) {
      last = fmt::format("step-{:08}\n", std::stoi(line.substr(5)));
    }
  }
  return last;
}

TEST(TrainSignals, TheFirstSavesAndEnds) {
  for (const int signal : {SIGINT, SIGTERM}) {
    const TempFolder folder;
    Program program(endless(folder.path()));
    ASSERT_TRUE(program.wait_for_out("step    3/")) << program.err();
    program.kill(signal);
    EXPECT_EQ(program.wait().shell_code(), 128 + signal) << program.err();
    EXPECT_EQ(base::read_file(folder.at("latest")), last_step(program.out()));
    EXPECT_THAT(program.err(), HasSubstr("stopping after this step, with a checkpoint"));
    Arguments again = endless(folder.path());
    again.insert(again.end(), {"--max-time", "1"});
    Program next(again);
    EXPECT_TRUE(next.wait_for_out("goes on from step ")) << next.err();
    EXPECT_TRUE(next.wait().ok());
  }
}

TEST(TrainSignals, TheSecondEndsAtOnce) {
  for (const int signal : {SIGINT, SIGTERM}) {
    Program program(one_long_step());
    ASSERT_TRUE(program.wait_for_out("rank 0 of 1")) << program.err();
    program.kill(SIGTERM);
    ASSERT_TRUE(program.wait_for_err("Another signal stops it now.")) << program.err();
    program.kill(signal);
    EXPECT_EQ(program.wait().shell_code(), 128 + signal);
  }
}

TEST(TrainSignals, UnderTheLauncherTheyDoTheSame) {
  for (const int signal : {SIGINT, SIGTERM}) {
    const TempFolder folder;
    Arguments arguments = {"--no-prefix", "--nproc-per-node=2", "--stop-grace=20", "--"};
    const Arguments program = endless(folder.path());
    arguments.insert(arguments.end(), program.begin(), program.end());
    Job job(arguments);
    ASSERT_TRUE(job.wait_for_output("step    3/", 1)) << job.err();
    job.kill(signal);
    EXPECT_EQ(job.wait().shell_code(), 128 + signal) << job.err();
    EXPECT_EQ(base::read_file(folder.at("latest")), last_step(job.out())) << job.err();
  }
}

TEST(TrainSignals, OneThatReachesOneRankEndsAllAfterTheSameStep) {
  const TempFolder folder;
  Arguments arguments = {"--no-prefix", "--nproc-per-node=2", "--stop-grace=20", "--"};
  const Arguments program = endless(folder.path());
  arguments.insert(arguments.end(), program.begin(), program.end());
  Job job(arguments);
  ASSERT_TRUE(job.wait_for_output("step    3/", 1)) << job.err();
  ::kill(job.workers().at(1), SIGTERM);
  EXPECT_EQ(job.wait().shell_code(), 0) << job.err();
  EXPECT_EQ(base::read_file(folder.at("latest")), last_step(job.out())) << job.err();
}

// As a shell starts what runs in the background.
TEST(TrainSignals, AnInterruptThatWasIgnoredStaysSo) {
  const TempFolder folder;
  Arguments arguments = {"sh", "-c", "trap '' INT; exec \"$0\" \"$@\""};
  const Arguments program = endless(folder.path());
  arguments.insert(arguments.end(), program.begin(), program.end());
  Program background(arguments);
  ASSERT_TRUE(background.wait_for_out("step    3/")) << background.err();
  background.kill(SIGINT);
  EXPECT_TRUE(background.wait_for_out("step   20/")) << background.err();
  background.kill(SIGTERM);
  EXPECT_EQ(background.wait().shell_code(), 143);
}

TEST(TwoRuns, InOneFolderAreKeptApart) {
  const TempFolder folder;
  Program first(endless(folder.path()));
  ASSERT_TRUE(first.wait_for_out("step    1/")) << first.err();
  Program second(endless(folder.path()));
  EXPECT_EQ(second.wait().code, 2);
  EXPECT_THAT(second.err(), HasSubstr(folder.path() + " is in use"));
  first.kill(SIGKILL);
  first.wait();
  Arguments again = endless(folder.path());
  again.insert(again.end(), {"--max-time", "1"});
  Program third(again);
  EXPECT_TRUE(third.wait().ok()) << third.err();  // the dead one stands in nobody's way
  again.insert(again.end(), {"--set", "checkpoint.resume=false"});
  Program fresh(again);
  EXPECT_EQ(fresh.wait().code, 2);
  EXPECT_THAT(fresh.err(), HasSubstr(" already, the newest "));
}

}  // namespace
}  // namespace lockstep::test
