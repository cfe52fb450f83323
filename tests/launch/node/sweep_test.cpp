#include "launch/node/sweep.h"

#include <algorithm>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/process/fork.h"
#include "base/process/process.h"

namespace lockstep {
namespace {

using ::testing::Contains;
using ::testing::Not;

TEST(Sweep, FindsAndEndsDescendantsButNotTheSpared) {
  base::adopt_orphans();
  base::Process spared({.argv = {"sleep", "1000"}});
  base::Process parent(
      {.argv = {"sh", "-c", "setsid sh -c 'sleep 1000; true' & sleep 1000; true"}});
  // sh and its sleep, the sh under setsid and its sleep
  const base::Deadline deadline = base::Deadline::after(std::chrono::seconds(30));
  while (launch::living_descendants({spared.pid()}).size() < 4 && !deadline.expired()) {
    ::usleep(1000);
  }
  EXPECT_THAT(launch::living_descendants(), Contains(spared.pid()));
  EXPECT_THAT(launch::living_descendants({spared.pid()}), Not(Contains(spared.pid())));
  EXPECT_TRUE(launch::kill_descendants(deadline, {spared.pid()}).empty());
  EXPECT_THAT(launch::living_descendants(), ::testing::ElementsAre(spared.pid()));
}

// The number of a process that has ended may be a stranger's by the time it is signalled.
TEST(Sweep, WhoHasTheNumberOfAnotherIsNotSignalled) {
  base::Process stranger({.argv = {"sleep", "1000"}});
  const auto found = launch::find_descendants();
  ASSERT_EQ(found.size(), 1u);
  launch::Descendant other = found.front();
  --other.start_ticks;
  launch::signal_descendant(other, SIGKILL);
  EXPECT_EQ(launch::find_descendants(), found);
  launch::signal_descendant(found.front(), SIGTERM);
  EXPECT_EQ(stranger.wait(base::Deadline::after(std::chrono::seconds(30)))->signal, SIGTERM);
}

TEST(Sweep, NobodyIsQuick) {
  EXPECT_TRUE(launch::kill_descendants(base::Deadline::never()).empty());
}

TEST(CloseAllExcept, KeepsWhatIsNamed) {
  const pid_t pid = base::fork_child([] {
    const auto open_null = [] { return ::open("/dev/null", O_RDONLY); };
    const int a = open_null();
    const int b = open_null();
    const int c = open_null();
    base::close_all_except({b, -1});
    const auto is_open = [](int fd) { return ::fcntl(fd, F_GETFD) >= 0; };
    return is_open(b) && !is_open(a) && !is_open(c) ? 0 : 1;
  });
  int status = -1;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace lockstep
