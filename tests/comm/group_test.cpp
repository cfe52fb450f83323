// Making, naming, sharing and ending groups.

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "support/fleet.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using testing_support::run_ranks;

TEST(MakeGroup, RefusesRanksOutsideTheGroupAndMissingNames) {
  const Store store = Store::host({.job_id = "job", .secret = "s"});
  EXPECT_THROW(make_group(store, {.name = "g", .rank = 2, .size = 2}), UsageError);
  EXPECT_THROW(make_group(store, {.name = "g", .rank = -1, .size = 2}), UsageError);
  EXPECT_THROW(make_group(store, {.name = "", .rank = 0, .size = 2}), UsageError);
  EXPECT_EQ(make_group(store, {.name = "g", .rank = 0, .size = 1}).backend_name(), "single");
}

TEST(MakeGroup, ARankThatNeverComesIsATimeout) {
  const Store store = Store::host({.job_id = "job", .secret = "s"});
  try {
    make_group(store, {.name = "g", .rank = 0, .size = 2, .timeout = 200ms});
    FAIL();
  } catch (const TimeoutError& error) {
    EXPECT_THAT(error.what(), HasSubstr("make_group"));
    EXPECT_THAT(error.what(), HasSubstr("rank 1 does not answer (not started"));
  }
}

TEST(MakeGroup, ANameIsUsedOnceAtATime) {
  run_ranks(2, [](Group& group) {
    const GroupOptions options{.name = "twice", .rank = group.rank(), .size = 2, .timeout = 20s};
    {
      Group first = make_group(group.store(), options);
      EXPECT_THROW(make_group(group.store(), options), UsageError);
      first.barrier();
    }
    group.barrier();  // both have left: the name is free again
    Group again = make_group(group.store(), options);
    again.barrier();
  });
}

TEST(MakeGroup, SeveralGroupsInOneProcessDoNotMeet) {
  run_ranks(3, [](Group& group) {
    Group reversed = make_group(
        group.store(), {.name = "reversed", .rank = 2 - group.rank(), .size = 3, .timeout = 20s});
    at::Tensor a = at::full({1}, static_cast<float>(group.rank()));
    at::Tensor b = at::full({1}, static_cast<float>(group.rank()));
    Work first = group.broadcast_async(a, {.root = 0});
    Work second = reversed.broadcast_async(b, {.root = 0});
    second.wait();
    first.wait();
    EXPECT_EQ(a.item<float>(), 0);
    EXPECT_EQ(b.item<float>(), 2);
  });
}

TEST(MakeGroup, AGroupThatIsDroppedWithWorkInFlightEndsAndTellsTheOthers) {
  run_ranks(2, [](Group& group) {
    auto extra = std::make_unique<Group>(make_group(
        group.store(), {.name = "dropped", .rank = group.rank(), .size = 2, .timeout = 20s}));
    at::Tensor x = at::ones({5});
    if (group.rank() == 0) {
      extra->recv_async(x, 1);
      extra.reset();
    } else {
      EXPECT_THROW(
          {
            for (;;) {
              extra->all_reduce(x);
            }
          },
          PeerLostError);
    }
  });
}

TEST(Store, HostsAndConnects) {
  Store host = Store::host({.job_id = "job", .secret = "s"});
  Store client = Store::connect({.endpoint = host.endpoint(), .job_id = "job", .secret = "s"});
  host.set("k", "v");
  EXPECT_EQ(client.get("k"), "v");
  EXPECT_EQ(client.try_get("none"), std::nullopt);
  EXPECT_EQ(client.add("n", 2), 2);
  EXPECT_EQ(host.compare_set("c", "", "x"), "x");
  EXPECT_TRUE(host.erase("k"));
  EXPECT_THROW(Store::connect({.endpoint = host.endpoint(), .job_id = "job", .secret = "t"}),
               UsageError);
  EXPECT_THROW(Store::connect({.endpoint = "nonsense", .job_id = "job"}), UsageError);
  EXPECT_THROW(Store::connect({.endpoint = "127.0.0.1:1", .job_id = "job", .timeout = 50ms}),
               TimeoutError);
}

}  // namespace
}  // namespace lockstep
