// A job that is killed at random moments, with all its processes at once, and started again, on
// other numbers of ranks too: it goes on every time and ends with the bits of a job left in peace.
#include <filesystem>
#include <map>
#include <poll.h>
#include <random>
#include <set>
#include <signal.h>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/env.h"
#include "support/job.h"
#include "support/paths.h"
#include "train/killed_run.h"

namespace lockstep::test {
namespace {

const std::string kProgram = testing_support::in_build("kill_job");

bool is_writing(const std::string& folder) {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    if (entry.path().filename().string().ends_with(".part")) {
      return true;
    }
  }
  return false;
}

void kill_all(const Job& job) {
  for (const pid_t pid : job.processes()) {
    ::kill(pid, SIGKILL);
  }
  EXPECT_TRUE(job.is_gone());
}

// How the killed jobs were found, for the reader of the test's output.
struct Histogram {
  int starting = 0, training = 0, writing = 0;
};

class KillTest : public testing::Test {
 protected:
  // What starts the program; without a folder it keeps nothing.
  std::vector<std::string> arguments(int num_ranks, const std::string& folder) const {
    std::vector<std::string> all = {"--no-prefix", fmt::format("--nproc-per-node={}", num_ranks),
                                    "--", kProgram, folder};
    if (has_own_optimizer_) {
      all.emplace_back("own");
    }
    return all;
  }

  void peaceful_run() {
    Job job(arguments(1, ""));
    ASSERT_EQ(job.wait().shell_code(), 0) << job.err();
    truth_ = hashes(job.out(), "step");
    ASSERT_EQ(truth_.size(), 108u);
    ended_ = hashes(job.out(), "ended");
  }

  // Kills the job at some moment: `in_write`, when it is seen to write a checkpoint. False if it
  // ended before.
  bool kill_at_random(Job& job, bool in_write) {
    const auto delay = std::chrono::milliseconds(
        std::uniform_int_distribution<int>(0, in_write ? 200 : 900)(dice_));
    const base::Deadline moment = base::Deadline::after(delay);
    const base::Deadline patience = base::Deadline::after(kPatience);
    while (!moment.expired() || (in_write && !is_writing(folder_))) {
      if (job.out().find("ended") != std::string::npos || patience.expired()) {
        break;
      }
      ::poll(nullptr, 0, 1);
    }
    const bool has_ended = job.out().find("ended") != std::string::npos;
    kill_all(job);
    return !has_ended;
  }

  void note(const Job& job) {
    int& place = is_writing(folder_) ? histogram_.writing
                 : job.out().empty() ? histogram_.starting
                                     : histogram_.training;
    ++place;
  }

  int num_killed() const { return histogram_.starting + histogram_.training + histogram_.writing; }

  // Everything that a job said is what the peaceful one said.
  void check(const Job& job) {
    for (const char* word : {"step", "resumed"}) {
      for (const auto& [step, hash] : hashes(job.out(), word)) {
        EXPECT_EQ(hash, truth_[step]) << word << " " << step;
      }
    }
    EXPECT_EQ(job.err().find("is not used"), std::string::npos) << job.err();
  }

  void kill_and_resume(int num_kills, int num_in_writes) {
    peaceful_run();
    if (HasFatalFailure()) {
      return;
    }
    constexpr int kRanks[] = {2, 4, 1};
    for (int i = 0; num_killed() < num_kills; ++i) {
      Job job(arguments(kRanks[i % 3], folder_));
      const bool is_due = histogram_.writing * num_kills < num_in_writes * (num_killed() + 1);
      const bool was_alive = kill_at_random(job, is_due);
      check(job);
      if (was_alive) {
        note(job);
      } else {  // another run, from the start
        finish(2);
        std::filesystem::remove_all(folder_);
      }
    }
    finish(4);
    fmt::print(
        "killed {} times: {} while starting, {} while training, {} inside a checkpoint write\n",
        num_killed(), histogram_.starting, histogram_.training, histogram_.writing);
    EXPECT_GE(histogram_.writing, num_in_writes);
  }

  void finish(int num_ranks) {
    Job job(arguments(num_ranks, folder_));
    EXPECT_EQ(job.wait().shell_code(), 0) << job.err();
    check(job);
    EXPECT_EQ(hashes(job.out(), "ended"), ended_);
    EXPECT_FALSE(is_writing(folder_)) << "what the dead left is cleared away";
  }

  TempFolder parent_;
  bool has_own_optimizer_ = false;
  const std::string folder_ = parent_.at("checkpoints");
  std::map<int, std::string> truth_, ended_;
  Histogram histogram_;
  std::mt19937 dice_{7};
};

TEST_F(KillTest, EveryResumeSucceedsAndTheEndIsTheSame) {
  const bool is_long = base::Env().has("LOCKSTEP_LONG_TESTS");
  kill_and_resume(is_long ? 50 : 9, is_long ? 15 : 3);
}

TEST_F(KillTest, AnOptimizerOfOnesOwnIsResumedBitForBit) {
  has_own_optimizer_ = true;
  const bool is_long = base::Env().has("LOCKSTEP_LONG_TESTS");
  kill_and_resume(is_long ? 20 : 3, 1);
}

TEST_F(KillTest, ADamagedCheckpointIsPassedOverLoudly) {
  peaceful_run();
  Job job(arguments(2, folder_));
  ASSERT_TRUE(job.wait_for_output("step 40 ", 1)) << job.err();
  kill_all(job);
  std::set<std::string> steps;
  for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
    if (entry.path().filename().string().starts_with("step-")) {
      steps.insert(entry.path());
    }
  }
  ASSERT_GE(steps.size(), 2u);
  const std::string newest = *steps.rbegin();
  const std::string shard = newest + "/shard-00001-of-00002.safetensors";
  std::filesystem::resize_file(shard, std::filesystem::file_size(shard) - 1);
  Job again(arguments(1, folder_));
  EXPECT_EQ(again.wait().shell_code(), 0) << again.err();
  EXPECT_NE(again.err().find(newest + " is not used: "), std::string::npos) << again.err();
  EXPECT_EQ(hashes(again.out(), "resumed").size(), 1u);
  EXPECT_EQ(hashes(again.out(), "ended"), ended_);
}

// As a scheduler does it before it takes a node away.
TEST_F(KillTest, ARequestToEndSavesFirst) {
  peaceful_run();
  Job job(arguments(2, folder_));
  ASSERT_TRUE(job.wait_for_output("step 20 ", 1)) << job.err();
  job.kill(SIGTERM);
  EXPECT_EQ(job.wait().shell_code(), 143);
  const auto ended = hashes(job.out(), "ended");
  ASSERT_EQ(ended.size(), 1u) << job.err();
  Job again(arguments(4, folder_));
  EXPECT_EQ(again.wait().shell_code(), 0) << again.err();
  EXPECT_EQ(hashes(again.out(), "resumed"), ended) << "not a step is lost";
  check(again);
  EXPECT_EQ(hashes(again.out(), "ended"), ended_);
}

}  // namespace
}  // namespace lockstep::test
