#pragma once

// A training that is killed where it runs, all of its processes at once, and started again: it
// must go on from a checkpoint and end with the bits of a run on one rank that nobody disturbed.

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <signal.h>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/job.h"
#include "train/killed_run.h"

namespace lockstep::test {

// A run under way, whatever has started it.
class Training {
 public:
  virtual ~Training() = default;
  virtual std::string out() const = 0;
  virtual std::string err() const = 0;
  virtual void kill() = 0;  // returns when nobody is left
  virtual int wait() = 0;   // for its end; the exit code
};

// One `lockstep run`, or one for each node.
class JobsOfTraining : public Training {
 public:
  // `others`: processes of the run that the marks of its jobs do not show.
  using Others = std::function<std::vector<pid_t>()>;
  explicit JobsOfTraining(std::vector<std::unique_ptr<Job>> jobs, Others others = {})
      : jobs_(std::move(jobs)), others_(std::move(others)) {}

  std::string out() const override { return all(&Job::out); }
  std::string err() const override { return all(&Job::err); }

  void kill() override {
    std::vector<pid_t> pids = others_ ? others_() : std::vector<pid_t>();
    for (const auto& job : jobs_) {
      const std::vector<pid_t> some = job->processes();
      pids.insert(pids.end(), some.begin(), some.end());
    }
    for (const pid_t pid : pids) {
      ::kill(pid, SIGKILL);
    }
    for (const auto& job : jobs_) {
      job->wait();
      EXPECT_TRUE(job->is_gone());
    }
  }

  int wait() override {
    int code = 0;
    for (const auto& job : jobs_) {
      const int its = job->wait(std::chrono::seconds(120)).shell_code();
      code = code == 0 ? its : code;
    }
    return code;
  }

 private:
  std::string all(std::string (Job::*text)() const) const {
    std::string joined;
    for (const auto& job : jobs_) {
      joined += (job.get()->*text)();
    }
    return joined;
  }

  std::vector<std::unique_ptr<Job>> jobs_;
  Others others_;
};

// The run on one rank in peace: what it said of each step, and at its end. Once per program.
struct Truth {
  std::map<int, std::string> steps, ended;
};
const Truth& truth();

// The program and its argument, for `lockstep run`.
std::vector<std::string> training(const std::string& folder);

// Starts it, kills it once it has saved and gone on, starts it again to its end.
void expect_survives_a_kill(const std::function<std::unique_ptr<Training>()>& start,
                            const std::string& folder);

// It comes to its end without a kill.
void expect_trains(Training& run);

}  // namespace lockstep::test
