// A killed rank and a late rank, in every operation: named errors on every survivor, in time, and a
// new group in the same processes afterwards.

#include <chrono>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "comm/every_backend.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using testing_support::choice_of;
using testing_support::die_now;
using testing_support::rank_argument;
using testing_support::RunOptions;
using testing_support::unstalled_now_ns;

class Failure : public testing_support::EveryBackend {};

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

void expect_working(Group& group) {
  at::Tensor x = at::ones({1001});
  group.all_reduce(x);
  EXPECT_TRUE(x.equal(at::full({1001}, static_cast<float>(group.size()))));
}

// Kills the last rank in `operation`, checks the survivors' error, and returns their new group.
Group lose_last_rank(Group& group, const std::string& operation) {
  const int victim = group.size() - 1;
  Store store = group.store();
  const std::string key =
      testing_support::case_name() + "/death/" + operation + "/" + std::to_string(group.size());
  expect_working(group);
  if (group.rank() == victim) {
    store.get(key + "/go");  // the others must be out of the call above
    store.set(key, std::to_string(unstalled_now_ns()));
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
  const double seconds =
      static_cast<double>(unstalled_now_ns() - std::stoll(store.get(key))) * 1e-9;
  EXPECT_LT(seconds, 1.0) << operation;
  EXPECT_THAT(message, HasSubstr(operation));
  EXPECT_THAT(message, HasSubstr("rank " + std::to_string(victim) + " (host "));
  EXPECT_THROW(group.barrier(), PeerLostError) << "the group stays unusable";
  return make_group(store, {.name = key,
                            .rank = group.rank(),
                            .size = victim,
                            .timeout = 20s,
                            .backend = choice_of(group)});
}

TEST_P(Failure, AKilledRankInEveryOperation) {
  // Each fleet of four loses three ranks, one per operation, down to a group of one.
  for (const std::string first : {"all_reduce", "reduce_scatter", "recv"}) {
    run(4,
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

TEST_P(Failure, TheFirstRankMayDieTooAndThoseInTheMiddle) {
  run(7,
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
        Group rest = make_group(group.store(), {.name = testing_support::case_name() + "/rest",
                                                .rank = new_rank,
                                                .size = 5,
                                                .timeout = 20s,
                                                .backend = choice_of(group)});
        expect_working(rest);
      },
      {.dies = {0, 3}});
}

TEST_P(Failure, ALateRankInEveryOperation) {
  for (const int world : {2, 3}) {
    run(world, [](Group& group) {
      Store store = group.store();
      Group current = group;
      for (const std::string& operation : kOperations) {
        const std::string key =
            testing_support::case_name() + "/late/" + operation + std::to_string(group.size());
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
        current = make_group(store, {.name = key,
                                     .rank = group.rank(),
                                     .size = group.size(),
                                     .timeout = 20s,
                                     .backend = choice_of(group)});
      }
      expect_working(current);
    });
  }
}

TEST_P(Failure, ALateRankIsNamedWithItsLastCall) {
  run(3, [](Group& group) {
    Store store = group.store();
    at::Tensor x = at::ones({5});
    group.all_reduce(x);
    if (group.rank() == 2) {
      store.get(testing_support::case_name() + "/named");
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
    store.set(testing_support::case_name() + "/named", "1");
  });
}

TEST_P(Failure, WaitForGivesUpWithoutHarm) {
  run(2, [](Group& group) {
    Store store = group.store();
    at::Tensor x = at::ones({5});
    if (group.rank() == 1) {
      store.get(testing_support::case_name() + "/may go on");
    }
    Work work = group.all_reduce_async(x);
    if (group.rank() == 0) {
      EXPECT_FALSE(work.wait_for(50ms));
      store.set(testing_support::case_name() + "/may go on", "1");
    }
    work.wait();
    EXPECT_TRUE(x.equal(at::full({5}, 2.0f)));
  });
}

TEST_P(Failure, AMistakeOfTheCallerLeavesTheGroupUsable) {
  run(2, [](Group& group) {
    EXPECT_THROW(group.all_gather(at::zeros({3}), at::zeros({2})), UsageError);
    EXPECT_THROW(group.send(at::zeros({3}), group.rank()), UsageError);
    EXPECT_THROW(group.broadcast(at::zeros({3}), {.root = 2}), UsageError);
    expect_working(group);
  });
}

TEST_P(Failure, ARankThatLeavesByAnExceptionIsToldToTheOthers) {
  run(2, [](Group& group) {
    std::string message;
    try {
      Group extra = make_group(group.store(), {.name = testing_support::case_name() + "/thrower",
                                               .rank = group.rank(),
                                               .size = 2,
                                               .timeout = 20s,
                                               .backend = choice_of(group)});
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

// The last of them may still be inside the operation that told them, when the first is gone.
TEST_P(Failure, AnErrorThatAllRanksAgreeOnIsEveryRanksOwn) {
  run(3, [](Group& group) {
    for (int attempt = 0; attempt < 4; ++attempt) {
      const auto throw_together = [&] {
        Group inner = group.split(0, group.rank());
        at::Tensor text = at::ones({100});
        inner.broadcast(text);
        throw std::runtime_error("agreed on");
      };
      try {
        throw_together();
      } catch (const std::exception& error) {
        EXPECT_STREQ(error.what(), "agreed on");
      }
      group.barrier();
    }
  });
}

TEST_P(Failure, DifferentCallsAreFoundOut) {
  RunOptions options;
  if (is_gloo()) {
    options.env = {"LOCKSTEP_CHECK_COLLECTIVES=1"};  // elsewhere it is always looked at
  }
  run(
      3,
      [](Group& group) {
        at::Tensor x = at::ones({group.rank() == 2 ? 6 : 5});
        try {
          // May be cut short on a rank that is still in it when another goes on and errs.
          expect_working(group);
          group.all_reduce(x, {.timeout = 10s});
          ADD_FAILURE() << "nobody noticed";
        } catch (const DesyncError& error) {
          EXPECT_THAT(error.what(), HasSubstr(" all_reduce (sum, Float, 5 elements)"));
          EXPECT_THAT(error.what(), HasSubstr("rank 2 all_reduce (sum, Float, 6 elements)"));
        }
      },
      options);
}

// Every way in which two calls can differ, and that the survivors of it can go on.
TEST_P(Failure, EveryDifferenceIsNamedWithBothCalls) {
  if (is_gloo()) {
    GTEST_SKIP()
        << "Gloo promises it under the check flag only, as DifferentCallsAreFoundOut shows";
  }
  run(4, [](Group& group) {
    struct Case {
      const char* name;
      void (*odd)(Group& group);
      void (*others)(Group& group);
      const char* odd_call;
      const char* other_call;
    };
    const std::vector<Case> cases = {
        {"kind", [](Group& g) { g.barrier(); },
         [](Group& g) { g.broadcast(at::ones({5}), {.root = 1}); }, "barrier",
         "broadcast (root 1, Float, 5 elements)"},
        {"size", [](Group& g) { g.all_reduce(at::ones({100000})); },
         [](Group& g) { g.all_reduce(at::ones({5})); }, "100000 elements", "5 elements"},
        {"type", [](Group& g) { g.all_reduce(at::ones({5}, at::kDouble)); },
         [](Group& g) { g.all_reduce(at::ones({5})); }, "Double", "Float"},
        {"reduction", [](Group& g) { g.all_reduce(at::ones({5}), {.op = ReduceOp::Max}); },
         [](Group& g) { g.all_reduce(at::ones({5})); }, "max", "sum"},
        {"root", [](Group& g) { g.broadcast(at::ones({5}), {.root = 3}); },
         [](Group& g) { g.broadcast(at::ones({5}), {.root = 1}); }, "root 3", "root 1"},
        {"order", [](Group& g) { g.barrier(), g.all_reduce(at::ones({5})); },
         [](Group& g) { g.all_reduce(at::ones({5})), g.barrier(); }, "barrier", "all_reduce"},
        {"memory", [](Group& g) { g.allocate(4096); }, [](Group& g) { g.allocate(8192); },
         "allocate (4096 bytes)", "allocate (8192 bytes)"},
    };
    Store store = group.store();
    for (int odd = 0; odd < group.size(); ++odd) {
      for (const Case& item : cases) {
        const std::string name =
            fmt::format("{}/differ/{}/{}", testing_support::case_name(), item.name, odd);
        std::optional<Group> fresh;
        try {  // the others may err while this rank is still connecting: the same error there
          fresh = make_group(store, {.name = name,
                                     .rank = group.rank(),
                                     .size = group.size(),
                                     .timeout = 20s,
                                     .backend = choice_of(group)});
          (group.rank() == odd ? item.odd : item.others)(*fresh);
          ADD_FAILURE() << "nobody noticed: " << item.name;
        } catch (const DesyncError& error) {
          EXPECT_THAT(error.what(), HasSubstr(item.odd_call)) << item.name;
          EXPECT_THAT(error.what(), HasSubstr(item.other_call)) << item.name;
          EXPECT_THAT(error.what(), HasSubstr(fmt::format("rank {} ", odd))) << item.name;
        }
        if (fresh) {
          EXPECT_THROW(fresh->barrier(), DesyncError);
        }
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(On, Failure, ::testing::ValuesIn(testing_support::kEveryWay),
                         testing_support::name_of);

}  // namespace
}  // namespace lockstep
