// Gloo writes to the sockets of dead ranks. SIGPIPE is at its default in these ranks, so that one
// which is not blocked ends the survivor and fails the test.

#include <filesystem>
#include <signal.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "base/unique_fd.h"
#include "comm/backends/sigpipe_block.h"
#include "support/fleet.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using testing_support::die_now;
using testing_support::rank_argument;
using testing_support::run_ranks;

bool is_at_default() {
  struct sigaction action {};
  ::sigaction(SIGPIPE, nullptr, &action);
  return action.sa_handler == SIG_DFL;
}

bool is_blocked() {
  sigset_t mask;
  ::pthread_sigmask(SIG_BLOCK, nullptr, &mask);
  return sigismember(&mask, SIGPIPE) == 1;
}

TEST(SigpipeBlock, DropsWhatCameAndTakesItselfBack) {
  ASSERT_TRUE(is_at_default());
  {
    const comm::SigpipeBlock block;
    EXPECT_TRUE(is_blocked());
    ::raise(SIGPIPE);
  }
  EXPECT_FALSE(is_blocked());
}

TEST(SigpipeBlock, LeavesTheMaskOfACallerThatBlocksIt) {
  const comm::SigpipeBlock outer;
  ::raise(SIGPIPE);
  { const comm::SigpipeBlock inner; }
  EXPECT_TRUE(is_blocked());
  sigset_t pending;
  sigpending(&pending);
  EXPECT_EQ(sigismember(&pending, SIGPIPE), 1) << "the caller's own";
}

int num_threads_that_block() {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    const std::string status = base::read_file(entry.path() / "status", 1 << 16);
    const size_t mask = status.find("SigBlk:") + 7;
    const auto blocked = std::stoull(status.substr(mask), nullptr, 16);
    count += (blocked >> (SIGPIPE - 1) & 1) != 0;
  }
  return count;
}

TEST(Sigpipe, ThreadsOfGlooBlockIt) {
  run_ranks(2,
            [](Group& group) {
              EXPECT_FALSE(is_blocked()) << "only there";
              EXPECT_GE(num_threads_that_block(), 3)
                  << "two that work, one that serves the sockets";
              group.barrier();
            },
            {.backend = BackendChoice::Gloo});
}

// The ranks die one after the other, from the last, while the others send in a loop.
void lose_all_but_one(Group& group, void (*send)(Group& group)) {
  EXPECT_TRUE(is_at_default());
  for (int size = group.size(); size > 1; --size) {
    Group current = make_group(group.store(), {.name = fmt::format("{}/{}", rank_argument(), size),
                                               .rank = group.rank(),
                                               .size = size,
                                               .timeout = 20s,
                                               .backend = BackendChoice::Gloo});
    EXPECT_THROW(
        {
          for (int i = 0;; ++i) {
            send(current);
            if (i == 20 && group.rank() == size - 1) {
              die_now();
            }
          }
        },
        PeerLostError);
  }
}

void lose_in(const std::string& name, void (*body)(Group& group)) {
  run_ranks(4, body,
            {.backend = BackendChoice::Gloo, .argument = "sigpipe " + name, .dies = {1, 2, 3}});
}

TEST(Sigpipe, ASurvivorLivesThroughCollectives) {
  lose_in("collectives", [](Group& group) {
    lose_all_but_one(group, [](Group& current) {
      at::Tensor x = at::ones({16});
      at::Tensor y = at::ones({16});
      Work work = current.all_reduce_async(x);
      current.all_reduce(y);
      work.wait();
    });
  });
}

TEST(Sigpipe, ASurvivorLivesThroughMessages) {
  lose_in("messages", [](Group& group) {
    lose_all_but_one(group, [](Group& current) {
      at::Tensor x = at::ones({16});
      at::Tensor y = at::ones({16});
      Work work = current.send_async(x, (current.rank() + 1) % current.size());
      current.recv(y, (current.rank() + current.size() - 1) % current.size());
      work.wait();
    });
  });
}

}  // namespace
}  // namespace lockstep
