#include "comm/work/callback_pool.h"

#include <future>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

namespace lockstep {
namespace {

// Before the pool has threads, which a forked child would not have. There is no room for the stack
// of another thread: a process at its limit of threads looks the same.
TEST(CallbackPool, WithoutAThreadTheCallerRunsTheJob) {
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit none{1 << 20, 1 << 20};  // below what is in use: nothing can be mapped any more
    ::setrlimit(RLIMIT_AS, &none);
    bool has_run = false;
    comm::run_callback([&has_run] { has_run = true; });
    ::_exit(has_run ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status)) << "it was ended by signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(CallbackPool, JobsThatWaitForEachOtherAllRun) {
  constexpr int kJobs = 20;
  std::promise<void> last;
  const std::shared_future<void> until_last = last.get_future().share();
  std::promise<int> done[kJobs];
  for (std::promise<int>& one : done) {
    comm::run_callback([&one, until_last] {
      until_last.wait();
      one.set_value(1);
    });
  }
  comm::run_callback([&last] { last.set_value(); });
  int sum = 0;
  for (std::promise<int>& one : done) {
    sum += one.get_future().get();
  }
  EXPECT_EQ(sum, kJobs);
}

}  // namespace
}  // namespace lockstep
