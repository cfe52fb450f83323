// A signal every 100 us, whose handler does nothing and restarts no system call, as a profiler's:
// groups are made, reduce and move as ever.

#include <atomic>
#include <chrono>
#include <csignal>
#include <sys/time.h>

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "comm/every_backend.h"
#include "comm/oracle.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using testing_support::choice_of;
using testing_support::input_of;
using testing_support::reduced;

class Interrupted : public testing_support::EveryBackend {};

std::atomic<int64_t> num_interruptions{0};

// The storm lasts as long as this.
class Storm {
 public:
  Storm() {
    struct sigaction action {};
    action.sa_handler = [](int) { ++num_interruptions; };
    EXPECT_EQ(::sigaction(SIGALRM, &action, &before_), 0);
    set_interval(100);
  }
  ~Storm() {
    set_interval(0);
    ::sigaction(SIGALRM, &before_, nullptr);
  }
  Storm(const Storm&) = delete;
  Storm& operator=(const Storm&) = delete;

 private:
  static void set_interval(int microseconds) {
    itimerval timer{};
    timer.it_interval.tv_usec = timer.it_value.tv_usec = microseconds;
    EXPECT_EQ(::setitimer(ITIMER_REAL, &timer, nullptr), 0);
  }

  struct sigaction before_ {};
};

void expect_all_operations(Group& group) {
  const int size = group.size();
  for (const int64_t numel : {1, 1001, 400'000}) {
    const at::Tensor x = input_of(group.rank(), numel, at::kFloat);
    group.all_reduce(x);
    EXPECT_TRUE(x.equal(reduced(size, numel, at::kFloat, ReduceOp::Sum))) << numel;
    const at::Tensor bound = group.allocate(4 * numel).view(at::kFloat);
    bound.copy_(input_of(group.rank(), numel, at::kFloat));
    group.all_reduce_async(bound).wait();
    EXPECT_TRUE(bound.equal(x)) << numel;
    const at::Tensor all = at::empty({size, numel});
    group.all_gather(all, input_of(group.rank(), numel, at::kFloat));
    for (int rank = 0; rank < size; ++rank) {
      EXPECT_TRUE(all[rank].equal(input_of(rank, numel, at::kFloat))) << numel;
    }
    const at::Tensor got = at::empty({numel});
    Work receive = group.recv_async(got, (group.rank() + size - 1) % size);
    group.send(input_of(group.rank(), numel, at::kFloat), (group.rank() + 1) % size);
    receive.wait();
    EXPECT_TRUE(got.equal(input_of((group.rank() + size - 1) % size, numel, at::kFloat))) << numel;
  }
}

TEST_P(Interrupted, GroupsAreMadeAndWorkInAStormOfSignals) {
  run(4, [](Group& given) {
    num_interruptions = 0;
    {
      const Storm storm;
      for (int round = 0; round < 3; ++round) {
        Group group = make_group(
            given.store(), {.name = fmt::format("{}/storm/{}", testing_support::case_name(), round),
                            .rank = given.rank(),
                            .size = given.size(),
                            .timeout = 40s,
                            .backend = choice_of(given)});
        EXPECT_EQ(group.backend_name(), given.backend_name());
        // Large enough that to get it takes longer than from one signal to the next.
        const at::Tensor large = group.allocate(64 << 20);
        large.narrow(0, 0, 100).fill_(1);
        expect_all_operations(group);
      }
    }
    EXPECT_GT(num_interruptions, 100);
  });
}

INSTANTIATE_TEST_SUITE_P(On, Interrupted, ::testing::ValuesIn(testing_support::kEveryBackend),
                         testing_support::name_of);

}  // namespace
}  // namespace lockstep
