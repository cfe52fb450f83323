// A device that fails, or is stuck, on one rank only: nobody waits for it, and every rank is told.

#include <future>
#include <new>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "comm/staged_group.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing_support::LateHooks;
using testing_support::make_staged_group;

class StagedFailure : public testing_support::EveryBackend {};

// Throws for the copy or the memory number `number`, counted from 1.
std::function<void()> fail_at(int number) {
  return [number, count = std::make_shared<int>(0)] {
    if (++*count == number) {
      throw std::bad_alloc();
    }
  };
}

std::chrono::milliseconds since(base::Clock::time_point begin) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(base::Clock::now() - begin);
}

constexpr auto kAtOnce = 20s;  // on a machine with too much to do; the groups' own limit is 60 s

// Rank 1 has `error`, and the others are told of it; the group is of no use any more, to nobody.
template <typename Error, typename Body>
void expect_all_told(Group& group, const Group& job, const char* what, Body body) {
  const auto begin = base::Clock::now();
  if (job.rank() == 1) {
    EXPECT_THROW(body(), Error);
  } else {
    try {
      body();
      group.barrier();  // a root may have been through before
      ADD_FAILURE() << "rank " << job.rank() << " was not told";
    } catch (const PeerLostError& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr("rank 1 "), HasSubstr(what)));
    }
  }
  EXPECT_LT(since(begin), kAtOnce);
  EXPECT_THROW(group.all_reduce(at::ones({3})), CommError);
  EXPECT_THROW(group.all_reduce_async(at::ones({3})).wait(), CommError);
}

TEST_P(StagedFailure, OfACopyIsEveryRanksFailure) {
  run(3, [](Group& job) {
    for (const bool is_async : {false, true}) {
      Group group = make_staged_group(
          job, {.name = fmt::format("copy/{}", is_async),
                .hooks = {.before_copy = job.rank() == 1 ? fail_at(3) : nullptr}});
      const at::Tensor x = at::ones({100'000});
      expect_all_told<std::bad_alloc>(group, job, "all_reduce #1", [&] {
        if (is_async) {
          group.all_reduce_async(x).wait();
        } else {
          group.all_reduce(x);
        }
      });
    }
  });
}

TEST_P(StagedFailure, OfMemoryIsEveryRanksFailure) {
  run(3, [](Group& job) {
    Group group = make_staged_group(
        job, {.name = "memory",
              .hooks = {.before_host_memory = job.rank() == 1 ? fail_at(2) : nullptr}});
    const at::Tensor input = at::ones({3, 100});
    expect_all_told<std::bad_alloc>(group, job, "all_to_all #1",
                                    [&] { group.all_to_all(at::empty_like(input), input); });
  });
}

TEST_P(StagedFailure, OfASendIsToldToItsReceiver) {
  run(2, [](Group& job) {
    Group group = make_staged_group(
        job, {.name = "send", .hooks = {.before_copy = job.rank() == 1 ? fail_at(1) : nullptr}});
    const at::Tensor x = at::ones({100});
    expect_all_told<std::bad_alloc>(group, job, "send (to rank 0", [&] {
      if (job.rank() == 1) {
        group.send(x, 0);
      } else {
        group.recv(x, 1);
      }
    });
  });
}

// The message has come, and nobody else waits for anything: the group goes on.
TEST_P(StagedFailure, OfAReceiversOwnCopyIsItsAlone) {
  run(2, [](Group& job) {
    Group group = make_staged_group(
        job, {.name = "recv", .hooks = {.before_copy = job.rank() == 1 ? fail_at(1) : nullptr}});
    const at::Tensor x = at::full({100}, static_cast<float>(job.rank()));
    if (job.rank() == 1) {
      Work work = group.recv_async(x, 0);
      std::promise<std::exception_ptr> told;
      work.on_done([&](const std::exception_ptr& error) { told.set_value(error); });
      EXPECT_THROW(
          {
            if (const auto error = told.get_future().get()) {
              std::rethrow_exception(error);
            }
          },
          std::bad_alloc);
      EXPECT_THROW(work.wait(), std::bad_alloc);
      group.recv(x, 0);
    } else {
      group.send(x, 1);
      group.send(x, 1);
    }
    EXPECT_TRUE(x.equal(at::zeros({100})));
    group.barrier();
  });
}

// A current stream that does not get on until it is let go.
class StuckStream {
 public:
  StuckStream() {
    testing_support::queue_late([end = end_.get_future().share()] { end.wait(); });
  }
  ~StuckStream() { end_.set_value(); }
  StuckStream(const StuckStream&) = delete;
  StuckStream& operator=(const StuckStream&) = delete;

 private:
  std::promise<void> end_;
};

TEST_P(StagedFailure, ADeviceThatTakesTooLongIsNamed) {
  run(3, [](Group& job) {
    for (const bool is_message : {false, true}) {
      Group group = make_staged_group(job, {.name = fmt::format("stuck/{}", is_message)});
      const auto stuck = job.rank() == 1 ? std::make_unique<StuckStream>() : nullptr;
      const at::Tensor x = at::ones({100});
      const std::chrono::milliseconds limit = job.rank() == 1 ? 1s : 60s;
      expect_all_told<TimeoutError>(group, job, "its GPU has not finished", [&] {
        if (!is_message) {
          group.all_reduce(x, {.timeout = limit});
        } else if (job.rank() == 1) {
          group.send(x, 0, {.timeout = limit});
        } else if (job.rank() == 0) {
          group.recv(x, 1, {.timeout = limit});
        }
      });
    }
  });
}

// Who waits for its own device hears of a death as all others do, and can leave.
TEST_P(StagedFailure, ABusyDeviceDoesNotHideADeath) {
  run(3,
      [](Group& job) {
        Store store = job.store();
        const std::string key = job.backend_name() + "/waits for its device";
        const auto is_armed = std::make_shared<bool>(false);
        LateHooks hooks;
        if (job.rank() == 1) {
          hooks.before_copy = [store, key, is_armed]() mutable {
            if (*is_armed) {
              store.set(key, "yes");
            }
          };
        }
        auto group = std::make_unique<Group>(
            make_staged_group(job, {.name = "busy", .hooks = std::move(hooks)}));
        group->all_reduce(
            at::ones({100'000}));  // memory to stage in, which all ranks make together
        *is_armed = true;
        const auto stuck = job.rank() == 1 ? std::make_unique<StuckStream>() : nullptr;
        if (job.rank() == 2) {
          store.get(key);
          testing_support::die_now();
        }
        const auto begin = base::Clock::now();
        EXPECT_THROW(group->all_reduce(at::ones({100'000})), PeerLostError);
        EXPECT_LT(since(begin), kAtOnce);
        group.reset();
        EXPECT_LT(since(begin), kAtOnce);
      },
      {.dies = {2}});
}

TEST_P(StagedFailure, AGroupWithABusyDeviceCanEnd) {
  run(2, [](Group& job) {
    auto group = std::make_unique<Group>(make_staged_group(job, {.name = "end"}));
    const auto stuck = job.rank() == 1 ? std::make_unique<StuckStream>() : nullptr;
    const at::Tensor x = at::ones({100'000});
    const auto begin = base::Clock::now();
    Work work = group->all_reduce_async(x);
    if (job.rank() == 1) {
      group.reset();
      EXPECT_THROW(work.wait(), PeerLostError);
    } else {
      EXPECT_THROW(work.wait(), PeerLostError);
    }
    EXPECT_LT(since(begin), kAtOnce);
  });
}

INSTANTIATE_TEST_SUITE_P(On, StagedFailure, ::testing::ValuesIn(testing_support::kEveryBackend),
                         testing_support::name_of);

}  // namespace
}  // namespace lockstep
