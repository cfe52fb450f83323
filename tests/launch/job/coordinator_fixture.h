#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "launch/job/coordinator.h"

namespace lockstep {

// A job whose members, clock and messages are the test's.
class JobTest : public ::testing::Test {
 protected:
  void begin(launch::CoordinatorOptions options) {
    options.program = "./x";
    coordinator_ = std::make_unique<launch::Coordinator>(
        options,
        launch::CoordinatorActions{
            .send = [this](launch::MemberId to,
                           const launch::HeadMessage& what) { sent_[to].push_back(what); },
            .hang_up = [this](launch::MemberId member) { hung_up_.push_back(member); },
            .begin_generation = [this](int64_t) { ++num_generations_; },
            .ask_ranks =
                [this](const std::string& what) {
                  asked_ += what + " ";
                  return num_listeners_;
                },
            .say = [this](const std::string& lines) { said_ += lines; },
            .first_to_fail = [this] { return first_to_fail_; }},
        now_);
  }

  void join(launch::MemberId id, launch::MemberInfo info = {}) {
    info.host = info.host.empty() ? "host" + std::to_string(id) : info.host;
    info.address = info.address.empty() ? "10.0.0." + std::to_string(id) : info.address;
    info.procs_per_node = 2;
    info.is_head = id == 0;
    hear(id, {.kind = launch::MemberSays::Join, .info = info});
  }
  void hear(launch::MemberId id, launch::MemberMessage message) {
    if (message.generation < 0) {
      message.generation = coordinator_->generation();
    }
    coordinator_->hear(id, message, now_);
  }
  void end_rank(launch::MemberId id, int rank, int code, std::chrono::nanoseconds age = {}) {
    hear(id, {.kind = launch::MemberSays::Ended,
              .rank = rank,
              .pid = 100 + rank,
              .age = age,
              .end = {.status = {.code = code},
                      .last_lines = "last words of " + std::to_string(rank)}});
  }
  void idle(launch::MemberId id) { hear(id, {.kind = launch::MemberSays::Idle}); }

  // All that live say so, every half second.
  void pass(std::chrono::nanoseconds time, std::vector<launch::MemberId> alive) {
    const auto end = now_ + time;
    while (now_ < end) {
      now_ += std::chrono::milliseconds(250);
      for (const launch::MemberId id : alive) {
        hear(id, {.kind = launch::MemberSays::Beat});
      }
      coordinator_->tick(now_);
    }
  }
  int count(launch::MemberId id, launch::HeadSays kind) {
    int found = 0;
    for (const launch::HeadMessage& message : sent_[id]) {
      found += message.kind == kind ? 1 : 0;
    }
    return found;
  }
  launch::Assignment place(launch::MemberId id) {
    for (auto message = sent_[id].rbegin(); message != sent_[id].rend(); ++message) {
      if (message->kind == launch::HeadSays::Start) {
        return message->assignment;
      }
    }
    return {.generation = -1};
  }

  base::Clock::time_point now_ = base::Clock::now();
  std::map<launch::MemberId, std::vector<launch::HeadMessage>> sent_;
  std::vector<launch::MemberId> hung_up_;
  int num_generations_ = 0;
  size_t num_listeners_ = 0;
  std::string said_, asked_;
  std::optional<int> first_to_fail_;  // what the ranks tell
  std::unique_ptr<launch::Coordinator> coordinator_;
};

}  // namespace lockstep
