// A killed rank and a late rank, in every operation: named errors on every survivor, in time, and a
// new group in the same processes afterwards.

#include <chrono>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "support/fleet.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using testing_support::die_now;
using testing_support::rank_argument;
using testing_support::run_ranks;

const std::vector<std::string> kOperations = {"all_reduce",     "broadcast",  "all_gather",
                                              "reduce_scatter", "all_to_all", "send",
                                              "recv",           "barrier"};

// Calls the operation so that every rank needs `victim`: it is the root, or the other end of a
// message.
void call(Group& group, const std::string& operation, int victim,
          std::chrono::milliseconds timeout) {
  const int size = group.size();
  at::Tensor x = at::ones({1001 * size});
  at::Tensor part = at::ones({1001});
  const int peer = group.rank() == victim ? (victim + 1) % size : victim;
  const MessageOptions message{.tag = group.rank() == victim ? peer : group.rank(),
                               .timeout = timeout};
  if (operation == "all_reduce") group.all_reduce(x, {.timeout = timeout});
  if (operation == "broadcast") group.broadcast(x, {.root = victim, .timeout = timeout});
  if (operation == "all_gather") group.all_gather(x, part, {.timeout = timeout});
  if (operation == "reduce_scatter") group.reduce_scatter(part, x, {.timeout = timeout});
  if (operation == "all_to_all") group.all_to_all(x, at::ones_like(x), {.timeout = timeout});
  if (operation == "send") group.send(x, peer, message);
  if (operation == "recv") group.recv(x, peer, message);
  if (operation == "barrier") group.barrier({.timeout = timeout});
}

int64_t now_ns() {
  return std::chrono::steady_clock::now().time_since_epoch().count();
}

void expect_working(Group& group) {
  at::Tensor x = at::ones({1001});
  group.all_reduce(x);
  EXPECT_TRUE(x.equal(at::full({1001}, static_cast<float>(group.size()))));
}

// Kills the last rank in `operation`, checks the survivors' error, and returns their new group.
Group lose_last_rank(Group& group, const std::string& operation) {
  const int victim = group.size() - 1;
  Store store = group.store();
  const std::string key = "death/" + operation + "/" + std::to_string(group.size());
  expect_working(group);
  if (group.rank() == victim) {
    store.get(key + "/go");                    // the others must be out of the call above
    store.set(key, std::to_string(now_ns()));  // the same clock on all processes of a machine
    die_now();
  }
  if (store.add(key + "/ready", 1) == victim) {
    store.set(key + "/go", "1");
  }
  std::string message;
  try {
    for (;;) {  // an operation may still end well on a rank that got all it needed; the next one
                // cannot
      call(group, operation, victim, 20s);
    }
  } catch (const PeerLostError& error) {
    message = error.what();
  }
  const double seconds = static_cast<double>(now_ns() - std::stoll(store.get(key))) * 1e-9;
  EXPECT_LT(seconds, 1.0) << operation;
  EXPECT_THAT(message, HasSubstr(operation));
  EXPECT_THAT(message, HasSubstr("rank " + std::to_string(victim) + " (host "));
  EXPECT_THROW(group.barrier(), PeerLostError) << "the group stays unusable";
  return make_group(store, {.name = key, .rank = group.rank(), .size = victim, .timeout = 20s});
}

TEST(Failure, AKilledRankInEveryOperation) {
  // Each fleet of four loses three ranks, one per operation, down to a group of one.
  for (const std::string first : {"all_reduce", "reduce_scatter", "recv"}) {
    run_ranks(4,
              [](Group& group) {
                size_t i = 0;
                while (kOperations[i] != rank_argument()) {
                  ++i;
                }
                Group current = group;
                for (int loss = 0; loss < 3; ++loss) {
                  current = lose_last_rank(
                      current, kOperations[(i + static_cast<size_t>(loss)) % kOperations.size()]);
                  expect_working(current);
                }
              },
              {.argument = first, .dies = {1, 2, 3}});
  }
}

TEST(Failure, TheFirstRankMayDieTooAndThoseInTheMiddle) {
  run_ranks(7,
            [](Group& group) {
              if (group.rank() == 0 || group.rank() == 3) {
                try {
                  expect_working(group);
                } catch (const PeerLostError&) {  // the other one was quicker
                }
                die_now();
              }
              EXPECT_THROW(
                  {
                    for (;;) {
                      expect_working(group);
                    }
                  },
                  PeerLostError);
              const int new_rank = group.rank() - (group.rank() > 3 ? 2 : 1);
              Group rest = make_group(
                  group.store(), {.name = "rest", .rank = new_rank, .size = 5, .timeout = 20s});
              expect_working(rest);
            },
            {.dies = {0, 3}});
}

TEST(Failure, ALateRankInEveryOperation) {
  for (const int world : {2, 3}) {
    run_ranks(world, [](Group& group) {
      Store store = group.store();
      Group current = group;
      for (const std::string& operation : kOperations) {
        const std::string key = "late/" + operation + std::to_string(group.size());
        const int late = current.size() - 1;
        expect_working(current);
        if (current.rank() == late) {
          store.get(key);  // late by construction: comes when the others have given up
        }
        std::string message;
        const auto start = std::chrono::steady_clock::now();
        try {
          call(current, operation, late, 400ms);
          ADD_FAILURE() << operation << " ended well without rank " << late;
        } catch (const TimeoutError& error) {
          message = error.what();
        }
        const auto took = std::chrono::steady_clock::now() - start;
        EXPECT_LT(took, 3s) << operation;
        EXPECT_THAT(message, HasSubstr(operation));
        if (current.rank() != late) {
          EXPECT_GE(took, 350ms) << operation << " gave up before its deadline";
          EXPECT_THAT(message, HasSubstr("rank " + std::to_string(late)));
          store.set(key, "1");
        }
        EXPECT_THROW(current.barrier(), TimeoutError);
        current = make_group(
            store, {.name = key, .rank = group.rank(), .size = group.size(), .timeout = 20s});
      }
      expect_working(current);
    });
  }
}

TEST(Failure, ALateRankIsNamedWithItsLastCall) {
  run_ranks(3, [](Group& group) {
    Store store = group.store();
    at::Tensor x = at::ones({5});
    group.all_reduce(x);
    if (group.rank() == 2) {
      store.get("named");
      EXPECT_THROW(group.all_reduce(x), TimeoutError);
      return;
    }
    try {
      group.all_reduce(x, {.timeout = 300ms});
      ADD_FAILURE();
    } catch (const TimeoutError& error) {
      EXPECT_THAT(error.what(), HasSubstr("not done after 300 ms"));
      EXPECT_THAT(error.what(), HasSubstr("rank 2 (host "));
      EXPECT_THAT(error.what(), HasSubstr("its last call was all_reduce #"));
    }
    store.set("named", "1");
  });
}

TEST(Failure, WaitForGivesUpWithoutHarm) {
  run_ranks(2, [](Group& group) {
    Store store = group.store();
    at::Tensor x = at::ones({5});
    if (group.rank() == 1) {
      store.get("may go on");
    }
    Work work = group.all_reduce_async(x);
    if (group.rank() == 0) {
      EXPECT_FALSE(work.wait_for(50ms));
      store.set("may go on", "1");
    }
    work.wait();
    EXPECT_TRUE(x.equal(at::full({5}, 2.0f)));
  });
}

TEST(Failure, AMistakeOfTheCallerLeavesTheGroupUsable) {
  run_ranks(2, [](Group& group) {
    EXPECT_THROW(group.all_gather(at::zeros({3}), at::zeros({2})), UsageError);
    EXPECT_THROW(group.send(at::zeros({3}), group.rank()), UsageError);
    EXPECT_THROW(group.broadcast(at::zeros({3}), {.root = 2}), UsageError);
    expect_working(group);
  });
}

TEST(Failure, ARankThatLeavesByAnExceptionIsToldToTheOthers) {
  run_ranks(2, [](Group& group) {
    std::string message;
    try {
      Group extra = make_group(
          group.store(), {.name = "thrower", .rank = group.rank(), .size = 2, .timeout = 20s});
      if (group.rank() == 0) {
        throw std::runtime_error("the model broke");
      }
      at::Tensor x = at::ones({5});
      extra.all_reduce(x);
    } catch (const PeerLostError& error) {  // from either call: rank 0 does not wait
      message = error.what();
    } catch (const std::runtime_error& error) {
      message = error.what();
    }
    EXPECT_THAT(message,
                HasSubstr(group.rank() == 0 ? "the model broke" : "an exception ended its work"));
  });
}

TEST(Failure, DifferentCallsAreFoundOutWhenAsked) {
  run_ranks(3,
            [](Group& group) {
              at::Tensor x = at::ones({group.rank() == 2 ? 6 : 5});
              try {
                // May be cut short on a rank that is still in it when another goes on and errs.
                expect_working(group);
                // May be cut short on a rank that is still in it when another goes on and errs.
                group.all_reduce(x, {.timeout = 10s});
                ADD_FAILURE() << "nobody noticed";
              } catch (const DesyncError& error) {
                EXPECT_THAT(error.what(), HasSubstr("rank 0 all_reduce (sum, Float, 5 elements)"));
                EXPECT_THAT(error.what(), HasSubstr("rank 2 all_reduce (sum, Float, 6 elements)"));
              }
            },
            {.env = {"LOCKSTEP_CHECK_COLLECTIVES=1"}});
}

}  // namespace
}  // namespace lockstep
