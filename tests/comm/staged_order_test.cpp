// What an operation comes after: the work that its caller's current stream had been given before.

#include <future>
#include <thread>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "comm/staged_group.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using testing_support::finish_late;
using testing_support::make_staged_group;
using testing_support::queue_late;

class StagedOrder : public testing_support::EveryBackend {};

constexpr int64_t kNumel = 70'001;  // three pieces
constexpr auto kKernelTime = 30ms;  // of the work on the stream, which a copy must not overtake

// As a kernel that writes `value`.
void fill_late(const at::Tensor& x, float value) {
  queue_late([x, value] {
    std::this_thread::sleep_for(kKernelTime);
    x.fill_(value);
  });
}

float next_to(const Group& group) {
  return static_cast<float>(group.rank() + 1);
}

TEST_P(StagedOrder, CollectivesReadWhatTheStreamComputes) {
  run(3, [](Group& job) {
    Group group = make_staged_group(job, {.name = "reads"});
    const at::Tensor x = at::full({kNumel}, -100.0f);
    fill_late(x, next_to(group));
    group.all_reduce(x);
    EXPECT_TRUE(x.equal(at::full({kNumel}, 6.0f)));

    const at::Tensor all = at::empty({3, kNumel});
    fill_late(x, 10 * next_to(group));
    group.all_gather_async(all, x).wait();
    EXPECT_TRUE(all.select(1, 0).equal(at::tensor({10.0f, 20.0f, 30.0f})));

    const at::Tensor part = at::empty({kNumel});
    fill_late(all, next_to(group));
    group.reduce_scatter(part, all);
    EXPECT_TRUE(part.equal(at::full({kNumel}, 6.0f)));

    const at::Tensor exchanged = at::empty_like(all);
    fill_late(all, 7 * next_to(group));
    group.all_to_all(exchanged, all);
    EXPECT_TRUE(exchanged.select(1, 3).equal(at::tensor({7.0f, 14.0f, 21.0f})));
  });
}

// A receiver's own work on the tensor comes before the values that it receives.
TEST_P(StagedOrder, CollectivesWriteAfterTheStream) {
  run(3, [](Group& job) {
    Group group = make_staged_group(job, {.name = "writes"});
    const at::Tensor x = at::full({kNumel}, -100.0f);
    fill_late(x, next_to(group));
    group.broadcast(x, {.root = 1});
    finish_late();
    EXPECT_TRUE(x.equal(at::full({kNumel}, 2.0f)));
  });
}

TEST_P(StagedOrder, MessagesComeAfterTheStream) {
  run(2, [](Group& job) {
    Group group = make_staged_group(job, {.name = "messages"});
    const at::Tensor x = at::full({kNumel}, 2.0f);
    if (group.rank() == 0) {
      group.send(x, 1);  // comes while its receiver's stream is busy
      group.recv(x, 1);
      EXPECT_TRUE(x.equal(at::full({kNumel}, 5.0f)));
    } else {
      fill_late(x, -1.0f);
      group.recv(x, 0);
      finish_late();
      EXPECT_TRUE(x.equal(at::full({kNumel}, 2.0f)));
      fill_late(x, 5.0f);
      group.send(x, 0);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(On, StagedOrder, ::testing::ValuesIn(testing_support::kEveryBackend),
                         testing_support::name_of);

}  // namespace
}  // namespace lockstep
