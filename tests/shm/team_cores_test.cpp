#include <fstream>
#include <string>
#include <sys/stat.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include <gtest/gtest.h>

#include "base/process/cores.h"
#include "shm/thread_team.h"

namespace lockstep::shm::test {
namespace {

TEST(TeamCores, RanksBoundToACoreEachHaveThemAllTogether) {
  const std::vector<int> cores = base::usable_cores();
  const int first = cores.front(), last = cores.back();  // the same where there is only one
  Arenas arenas(2);
  std::unique_ptr<Team> teams[2];
  for (int rank = 0; rank < 2; ++rank) {
    std::thread([&] {
      ASSERT_TRUE(base::stay_on_core(rank == 0 ? first : last));
      teams[rank] = std::make_unique<Team>(rank, arenas.addresses());
      EXPECT_EQ(teams[rank]->num_cores(), 1) << "its own, before it has met the other";
    }).join();
  }
  std::thread other([&] { teams[1]->run({.kind = Kind::Barrier}); });
  teams[0]->run({.kind = Kind::Barrier});
  other.join();
  EXPECT_EQ(teams[0]->num_cores(), first == last ? 1 : 2);
  EXPECT_EQ(teams[1]->num_cores(), first == last ? 1 : 2);
  // And they act on it: from the second operation on they meet by marks, not at the gate.
  const auto& words = *reinterpret_cast<const Words<Platform>*>(arenas.addresses()[0]);
  EXPECT_EQ(words.arrivals.value.load(), 2u);
  std::thread again([&] { teams[1]->run({.kind = Kind::Barrier}); });
  teams[0]->run({.kind = Kind::Barrier});
  again.join();
  EXPECT_EQ(words.arrivals.value.load(), first == last ? 4u : 2u);
}

// A control group of one core's time, for a child of this process.
class GroupOfOneCore {
 public:
  GroupOfOneCore() {
    for (const std::string root : {"/sys/fs/cgroup/cpu", "/sys/fs/cgroup"}) {
      folder_ = root + "/lockstep-test-" + std::to_string(::getpid());
      if (::mkdir(folder_.c_str(), 0755) == 0) {
        is_made_ = write("cpu.cfs_quota_us", "100000") || write("cpu.max", "100000 100000");
        return;
      }
    }
  }
  ~GroupOfOneCore() { ::rmdir(folder_.c_str()); }

  bool is_made() const { return is_made_; }
  bool enter() const { return write("cgroup.procs", "0"); }

 private:
  bool write(const std::string& file, const std::string& text) const {
    std::ofstream out(folder_ + "/" + file, std::ios::in);  // never makes one
    out << text << std::flush;
    return static_cast<bool>(out);
  }

  std::string folder_;
  bool is_made_ = false;
};

TEST(TeamCores, AQuotaOfOneCoreIsOneCoreForAllRanks) {
  if (base::usable_cores().size() < 2) {
    GTEST_SKIP() << "a host of one core";
  }
  const GroupOfOneCore group;
  if (!group.is_made()) {
    GTEST_SKIP() << "this user may not make a control group with a CPU quota";
  }
  const pid_t child = ::fork();
  if (child == 0) {
    if (!group.enter()) {
      ::_exit(77);
    }
    Arenas arenas(2);
    Team zero(0, arenas.addresses()), one(1, arenas.addresses());
    std::thread other([&] { one.run({.kind = Kind::Barrier}); });
    zero.run({.kind = Kind::Barrier});
    other.join();
    ::_exit(base::num_usable_cores() == 1 && zero.num_cores() == 1 && one.num_cores() == 1 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 77) {
    GTEST_SKIP() << "this user may not move a process into a control group";
  }
  EXPECT_EQ(WEXITSTATUS(status), 0) << "more than one core was counted";
}

TEST(TeamCores, RanksWithACoreEachSpinAndOthersYield) {
  EXPECT_FALSE(WaitPolicy::for_ranks(4, 16).yields);
  EXPECT_FALSE(WaitPolicy::for_ranks(4, 4).yields);
  EXPECT_TRUE(WaitPolicy::for_ranks(4, 3).yields);
}

}  // namespace
}  // namespace lockstep::shm::test
