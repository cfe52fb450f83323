// `lockstep run` under real Slurm on two emulated machines: as a step, in a batch script, in an
// image.

#include <algorithm>
#include <filesystem>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launch/scheduler/slurm_fixture.h"
#include "support/job.h"

namespace lockstep::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Words = std::vector<std::string>;

constexpr int kRanks = 8;
const std::string kWhoAmI = "echo rank $RANK of $WORLD_SIZE on $(hostname) at $MASTER_ADDR";

class SlurmJob : public SlurmTest {
 protected:
  void SetUp() override {
    SlurmTest::SetUp();
    if (has_cluster()) {
      daemons_ = processes();
    }
  }

  // Whatever became of the test: nobody but Slurm's own is left on the nodes.
  void TearDown() override {
    if (has_cluster()) {
      EXPECT_TRUE(wait_until([this] {
        const auto now = processes();
        return std::includes(daemons_.begin(), daemons_.end(), now.begin(), now.end());
      }));
    }
  }

  static std::vector<pid_t> processes() {
    std::vector<pid_t> all = nodes().processes(0);
    const std::vector<pid_t> others = nodes().processes(1);
    all.insert(all.end(), others.begin(), others.end());
    std::sort(all.begin(), all.end());
    return all;
  }

  // `srun FLAGS lockstep ARGUMENTS` from node 0. The user's key is made in the test's folder.
  static base::Output srun(Words flags, const Words& arguments,
                           std::map<std::string, std::string> env = {}) {
    env["XDG_CONFIG_HOME"] = folder().path();
    flags.insert(flags.begin(), "srun");
    flags.push_back(lockstep_program());
    flags.insert(flags.end(), arguments.begin(), arguments.end());
    return base::run_process(cluster().client({.argv = flags, .env = env}),
                             base::Deadline::after(kPatience));
  }

  static std::string batch(const std::string& line) {
    return fmt::format(
        "#!/bin/sh\n#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\nexport RANK=3\n"
        "exec {} run --nproc-per-node=4 {}\n",
        lockstep_program(), line);
  }

  static void expect_all_ranks(const base::Output& output) {
    EXPECT_TRUE(output.status.ok()) << output.out << output.err << cluster().logs();
    EXPECT_EQ(count(output.out, "rank"), kRanks) << output.out;
    for (int rank = 0; rank < kRanks; ++rank) {
      EXPECT_THAT(output.out, HasSubstr(fmt::format("n{0} r{1}: rank {1} of 8 on node{0} at {2}\n",
                                                    rank / 4, rank, nodes().address(0))));
    }
  }

 private:
  std::vector<pid_t> daemons_;
};

TEST_F(SlurmJob, AStepNeedsNoFlags) {
  const std::map<std::string, std::string> garbage{{"RANK", "5"},
                                                   {"LOCAL_RANK", "1"},
                                                   {"WORLD_SIZE", "77"},
                                                   {"MASTER_ADDR", "nowhere"},
                                                   {"MASTER_PORT", "1"}};
  expect_all_ranks(srun({"-N2", "--ntasks-per-node=1"},
                        {"run", "--nproc-per-node=4", "sh", "-c", kWhoAmI}, garbage));
}

TEST_F(SlurmJob, RanksAreTheStepsCores) {
  const base::Output output = srun({"-N2", "--ntasks-per-node=1", "--cpus-per-task=2", "--exact"},
                                   {"run", "sh", "-c", "echo rank $RANK of $WORLD_SIZE"});
  EXPECT_TRUE(output.status.ok()) << output.err;
  EXPECT_EQ(count(output.out, "of 4"), 4) << output.out << output.err;
}

TEST_F(SlurmJob, ABatchScriptNeedsNoSrun) {
  const std::string go = folder().path() + "/go";
  const std::string job = cluster().sbatch(
      batch(fmt::format("sh -c '{}; until [ -e {} ]; do sleep 0.05; done'", kWhoAmI, go)));
  ASSERT_TRUE(wait_until([&] { return count(cluster().job_output(job), "rank") == kRanks; }))
      << cluster().job_output(job) << cluster().logs();
  expect_secret_is_hidden(processes());
  folder().file("go", "");
  expect_all_ranks(cluster().wait_for_job(job));
}

TEST_F(SlurmJob, RunsFromAnImageWithReadOnlyDataAndWritableCheckpoints) {
  const std::string path = folder().path();
  for (const char* name : {"root", "data", "checkpoints"}) {
    std::filesystem::create_directory(path + "/" + name);
  }
  folder().file("data/words", "lorem ipsum\n");
  const std::string program = folder().file("train",
                                            "#!/bin/sh\n"
                                            "read -r words < /data/words\n"
                                            "echo \"$words\" > /checkpoints/rank_$RANK\n"
                                            "(: > /data/mine) 2>/dev/null && exit 3\n"
                                            "(: > /mine) 2>/dev/null && exit 4\n"
                                            "[ ! -e " +
                                                path + " ] || exit 5\n",
                                            0755);
  const std::string image = path + "/job.sqsh";
  const base::Output built =
      run_lockstep({"image", "build", "--from", path + "/root", "--add", program, "-o", image});
  ASSERT_TRUE(built.status.ok()) << built.err;
  const base::Output check = run_lockstep({"image", "check", image});
  LOCKSTEP_NEEDS("image", check.status.ok() ? std::nullopt : std::optional(check.err));
  const base::Output output =
      srun({"-N2", "--ntasks-per-node=1"},
           {"run", "--nproc-per-node=4", "--image", image, "--mount", path + "/data:/data:ro",
            "--mount", path + "/checkpoints:/checkpoints", "--", "train"});
  EXPECT_TRUE(output.status.ok()) << output.out << output.err;
  for (int rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(base::read_file(fmt::format("{}/checkpoints/rank_{}", path, rank)), "lorem ipsum\n");
  }
  EXPECT_FALSE(std::filesystem::exists(path + "/data/mine"));
}

TEST_F(SlurmJob, AFailureOnAnotherNodeIsReportedAndPassedOn) {
  const base::Output output =
      srun({"-N2", "--ntasks-per-node=1"},
           {"run", "--nproc-per-node=4", "sh", "-c",
            "if [ $RANK = 6 ]; then echo last words; exit 7; fi; exec sleep 1000"});
  EXPECT_EQ(output.status.code, 7) << output.err;
  EXPECT_THAT(output.err, AllOf(HasSubstr("rank 6 (node1, node 1, local rank 2"),
                                HasSubstr("exit code 7"), HasSubstr("last words")));
}

TEST_F(SlurmJob, ScancelStopsAll) {
  const std::string job = cluster().sbatch(batch("sh -c 'echo up; exec sleep 1000'"));
  ASSERT_TRUE(wait_until([&] { return count(cluster().job_output(job), "up") == kRanks; }))
      << cluster().logs();
  const auto begin = base::Clock::now();
  base::run_process(cluster().client({.argv = {"scancel", job}}), base::Deadline::after(kPatience));
  const base::Output output = cluster().wait_for_job(job);
  EXPECT_FALSE(output.timed_out) << output.err;
  EXPECT_THAT(output.err, HasSubstr("SIGTERM"));
  EXPECT_LT(base::Clock::now() - begin, std::chrono::seconds(8)) << "Slurm kills after ten";
}

TEST_F(SlurmJob, SeveralTasksPerNodeAreOneSentence) {
  const base::Output output =
      srun({"-N2", "--ntasks-per-node=2"}, {"run", "--nproc-per-node=4", "echo", "started"});
  EXPECT_EQ(output.status.code, 2);
  EXPECT_THAT(output.out, Not(HasSubstr("started")));
  EXPECT_THAT(output.err, HasSubstr("srun started 2 tasks on this node"));
}

TEST_F(SlurmJob, TheEmittedScriptRuns) {
  const base::Output script = run_lockstep(
      {"run", "--emit", "slurm", "--nnodes=2", "--nproc-per-node=4", "--", "sh", "-c", kWhoAmI});
  ASSERT_TRUE(script.status.ok()) << script.err;
  const std::string path = std::filesystem::path(lockstep_program()).parent_path();
  expect_all_ranks(
      cluster().sbatch_and_wait(script.out, {"--export=ALL,PATH=" + path + ":/usr/bin:/bin"}));
}

}  // namespace
}  // namespace lockstep::test
