#include "train/places/places.h"

#include "support/paths.h"

namespace lockstep::test {

namespace {

// Steps that are told before the kill: some of them behind the newest checkpoint, which comes
// every three steps.
constexpr size_t kStepsBeforeTheKill = 11;

void expect_true_steps(const std::string& out) {
  for (const char* word : {"step", "resumed"}) {
    for (const auto& [step, hash] : hashes(out, word)) {
      EXPECT_EQ(hash, truth().steps.at(step)) << word << " " << step;
    }
  }
}

}  // namespace

const Truth& truth() {
  static const Truth known = [] {
    Job job({"--no-prefix", "--nproc-per-node=1", "--", training("")[0], ""});
    EXPECT_EQ(job.wait(std::chrono::seconds(120)).shell_code(), 0) << job.err();
    return Truth{.steps = hashes(job.out(), "step"), .ended = hashes(job.out(), "ended")};
  }();
  return known;
}

std::vector<std::string> training(const std::string& folder) {
  return {testing_support::in_build("kill_job"), folder};
}

void expect_survives_a_kill(const std::function<std::unique_ptr<Training>()>& start,
                            const std::string& folder) {
  ASSERT_EQ(truth().steps.size(), 108u);
  {
    const std::unique_ptr<Training> first = start();
    ASSERT_TRUE(wait_until([&] {
      return hashes(first->out(), "step").size() >= kStepsBeforeTheKill &&
             std::filesystem::exists(folder + "/latest");
    })) << first->out()
        << first->err();
    first->kill();
    expect_true_steps(first->out());
    EXPECT_TRUE(hashes(first->out(), "ended").empty()) << "the kill came too late";
  }
  const std::unique_ptr<Training> second = start();
  EXPECT_EQ(second->wait(), 0) << second->err();
  const auto resumed = hashes(second->out(), "resumed");
  ASSERT_EQ(resumed.size(), 1u) << second->out() << second->err();
  EXPECT_GT(resumed.begin()->first, 0);
  expect_true_steps(second->out());
  EXPECT_EQ(hashes(second->out(), "ended"), truth().ended);
}

void expect_trains(Training& run) {
  ASSERT_EQ(truth().steps.size(), 108u);
  EXPECT_EQ(run.wait(), 0) << run.err();
  EXPECT_EQ(hashes(run.out(), "step"), truth().steps) << run.err();
  EXPECT_EQ(hashes(run.out(), "ended"), truth().ended);
}

}  // namespace lockstep::test
