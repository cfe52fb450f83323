// A rank that cannot share its memory, with the others or at all: everybody hears of it at once.

#include <atomic>
#include <cerrno>
#include <chrono>
#include <future>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <thread>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "base/unique_fd.h"
#include "comm/every_backend.h"
#include "support/refused_calls.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using testing_support::choice_of;
using testing_support::die_now;
using testing_support::run_ranks;

// While it lives this process gets no shared memory of more than 64 KiB, on rank `victim`.
class NoMemory {
 public:
  NoMemory(const Group& group, int victim) : is_victim_(group.rank() == victim) {
    if (is_victim_) {
      before_handler_ = ::signal(SIGXFSZ, SIG_IGN);
      ::getrlimit(RLIMIT_FSIZE, &before_);
      rlimit tight = before_;
      tight.rlim_cur = 64 << 10;
      EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &tight), 0);
    }
  }
  ~NoMemory() {
    if (is_victim_) {
      ::setrlimit(RLIMIT_FSIZE, &before_);
      ::signal(SIGXFSZ, before_handler_);
    }
  }
  NoMemory(const NoMemory&) = delete;
  NoMemory& operator=(const NoMemory&) = delete;

 private:
  const bool is_victim_;
  rlimit before_{};
  void (*before_handler_)(int) = SIG_DFL;
};

void expect_working(Group& group) {
  at::Tensor x = at::ones({1001});
  group.all_reduce(x);
  EXPECT_TRUE(x.equal(at::full({1001}, static_cast<float>(group.size()))));
}

Group group_without_memory_on(Group& group, int victim, const std::string& name,
                              BackendChoice choice) {
  const NoMemory tight(group, victim);
  return make_group(group.store(), {.name = name,
                                    .rank = group.rank(),
                                    .size = group.size(),
                                    .timeout = 60s,
                                    .backend = choice});
}

TEST(Sharing, WhoCannotIsServedByGlooAtOnceAndALostRankIsNamedThere) {
  for (const int victim : {0, 1, 3}) {
    run_ranks(4,
              [](Group& group) {
                const int tight = std::stoi(testing_support::rank_argument());
                const auto start = std::chrono::steady_clock::now();
                Group gloo = group_without_memory_on(group, tight, fmt::format("sharing/{}", tight),
                                                     BackendChoice::Auto);
                EXPECT_LT(std::chrono::steady_clock::now() - start, 10s) << "waited for the victim";
                EXPECT_EQ(gloo.backend_name(), "gloo");
                expect_working(gloo);
                Store store = group.store();
                const std::string key = testing_support::case_name() + "/works on ";
                store.set(key + std::to_string(group.rank()), "1");
                if (group.rank() == 2) {
                  for (const int rank : {0, 1, 3}) {  // the others must be out of the call above
                    store.get(key + std::to_string(rank));
                  }
                  die_now();
                }
                EXPECT_THROW(
                    {
                      while (true) {
                        expect_working(gloo);
                      }
                    },
                    PeerLostError);
              },
              {.backend = BackendChoice::Gloo, .argument = std::to_string(victim), .dies = {2}});
  }
}

TEST(Sharing, TheCauseIsNamedNotItsEchoes) {
  run_ranks(4,
            [](Group& group) {
              for (const int victim : {0, 2, 3}) {
                try {
                  group_without_memory_on(group, victim, fmt::format("cause/{}", victim),
                                          BackendChoice::Shm);
                  ADD_FAILURE() << "memory is shared";
                } catch (const UsageError& error) {
                  EXPECT_THAT(error.what(), HasSubstr(fmt::format(
                                                ": rank {}: shared memory: cannot get ", victim)));
                } catch (const PeerLostError& error) {  // the other one was quicker to give up
                  EXPECT_THAT(error.what(), HasSubstr("an exception ended its work"));
                }
              }
              expect_working(group);
            },
            {.backend = BackendChoice::Gloo});
}

// The others are where they meet already, or wait to be told where: no socket of it tells them.
TEST(Sharing, ARankThatDoesNotEvenComeIsNotWaitedFor) {
  for (const int victim : {0, 2}) {
    run_ranks(
        3,
        [](Group& group) {
          const int odd = std::stoi(testing_support::rank_argument());
          if (group.rank() == odd) {
            // No socket to meet others of this host by, as in a sandbox.
            test::refuse_call(SYS_socket, EACCES, test::ArgumentRule{.index = 0, .value = AF_UNIX});
          }
          const auto start = std::chrono::steady_clock::now();
          Group gloo = make_group(
              group.store(),
              {.name = "exchange", .rank = group.rank(), .size = group.size(), .timeout = 60s});
          EXPECT_LT(std::chrono::steady_clock::now() - start, 10s) << "rank " << odd;
          EXPECT_EQ(gloo.backend_name(), "gloo");
          expect_working(gloo);
        },
        {.backend = BackendChoice::Gloo,
         .argument = std::to_string(victim),
         .env = {"SANDBOX=1"}});  // ranks of their own: nobody gets out of a sandbox
  }
}

// A message that nobody answers ends with its group, and so does what it holds.
TEST(Sharing, PendingMessagesReleaseTheirTensors) {
  run_ranks(2, [](Group& group) {
    static std::vector<float> memory(5);
    static std::atomic<bool> is_freed{false};
    std::promise<bool> failed;
    {
      Group own = make_group(group.store(), {.name = "pending",
                                             .rank = group.rank(),
                                             .size = 2,
                                             .timeout = 60s,
                                             .backend = BackendChoice::Shm});
      const auto free_it = [](void*) { is_freed = true; };
      at::Tensor x = at::from_blob(memory.data(), {5}, free_it, at::kFloat);
      Work work = own.recv_async(x, 1 - group.rank());
      work.on_done([&](const std::exception_ptr& error) { failed.set_value(error != nullptr); });
    }
    EXPECT_TRUE(failed.get_future().get());
    for (int i = 0; i < 10000 && !is_freed; ++i) {  // the callback's thread lets go right after
      std::this_thread::sleep_for(1ms);
    }
    EXPECT_TRUE(is_freed);
  });
}

class SharingOn : public testing_support::EveryBackend {};

TEST_P(SharingOn, MemoryThatOneRankCannotHaveIsAnErrorOfAllAtOnce) {
  run(4, [](Group& group) {
    const bool is_one_node = group.local_ranks().size() == 4;
    for (const int victim : {0, 3}) {
      Group own = make_group(
          group.store(), {.name = fmt::format("{}/memory/{}", testing_support::case_name(), victim),
                          .rank = group.rank(),
                          .size = 4,
                          .timeout = 60s,
                          .backend = choice_of(group)});
      const auto start = std::chrono::steady_clock::now();
      std::string message;
      try {
        const NoMemory tight(group, victim);
        own.allocate(1 << 20);
        if (!is_one_node) {
          own.barrier();  // ranks of the other node may have theirs before they hear of it
        }
        ADD_FAILURE() << "rank " << victim << " has the memory";
      } catch (const IoError& error) {
        message = error.what();
      } catch (const PeerLostError& error) {
        EXPECT_FALSE(is_one_node);
        message = error.what();
      }
      EXPECT_LT(std::chrono::steady_clock::now() - start, 10s);
      EXPECT_THAT(message, HasSubstr(fmt::format("rank {}: shared memory: cannot get 1048576 bytes",
                                                 victim)));
      if (is_one_node) {
        expect_working(own);
        own.allocate(1 << 20);
      }
    }
  });
}

// Memory moves to a group in a new segment, which one rank cannot have.
TEST_P(SharingOn, MemoryThatOneRankCannotMoveIsAnErrorOfAllAtOnce) {
  run(4, [](Group& group) {
    const auto make = [&](const std::string& name) {
      return make_group(group.store(), {.name = testing_support::case_name() + "/move/" + name,
                                        .rank = group.rank(),
                                        .size = 4,
                                        .timeout = 60s,
                                        .backend = choice_of(group)});
    };
    at::Tensor memory = make("first").allocate(1 << 20);
    Group next = make("next");
    const auto start = std::chrono::steady_clock::now();
    std::string message;
    try {
      const NoMemory tight(group, 3);
      next.rebind(memory);
      if (group.local_ranks().size() < 4) {
        next.barrier();  // as above
      }
      ADD_FAILURE() << "rank 3 has the memory";
    } catch (const IoError& error) {
      message = error.what();
    } catch (const PeerLostError& error) {
      message = error.what();
    }
    EXPECT_LT(std::chrono::steady_clock::now() - start, 10s);
    EXPECT_THAT(message, HasSubstr("rank 3: shared memory: cannot get 1048576 bytes"));
  });
}

INSTANTIATE_TEST_SUITE_P(On, SharingOn,
                         ::testing::Values(testing_support::kEveryBackend[1],
                                           testing_support::kEveryBackend[2]),
                         testing_support::name_of);

}  // namespace
}  // namespace lockstep
