// On made-up machines: what comes out does not depend on the one that runs the test.

#include "launch/node/placement.h"

#include <sched.h>
#include <sys/wait.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "base/process/fork.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Two packages, each a NUMA node of two caches, two cores under each: 8 cores, 16 threads. hwloc
// numbers the threads of core c 2c and 2c + 1.
const std::string kTwoSockets = "package:2 [numa] l3:2 core:2 pu:2";

std::string cpus_text(const launch::Placement& placement) {
  std::vector<std::string> texts;
  for (const launch::RankPlacement& rank : placement.ranks) {
    texts.push_back(fmt::format("{}", fmt::join(rank.cpus, ",")));
  }
  return fmt::format("{}", fmt::join(texts, " | "));
}

std::string place(launch::BindMode bind, int num_ranks, const launch::TopologyOptions& topology,
                  const std::vector<int>& gpus = {}) {
  return cpus_text(launch::place_ranks(bind, num_ranks, launch::read_topology(topology), gpus));
}

TEST(Topology, KnowsCoresPackagesNodesAndCaches) {
  const launch::HostTopology host = launch::read_topology({.synthetic = kTwoSockets});
  ASSERT_EQ(host.cores.size(), 8u);
  EXPECT_THAT(host.cores[5].cpus, ElementsAre(10, 11));
  EXPECT_EQ(host.cores[3].package, 0);
  EXPECT_EQ(host.cores[4].package, 1);
  EXPECT_EQ(host.cores[4].numa_node, 1);
  EXPECT_EQ(host.cores[1].cache, host.cores[0].cache);
  EXPECT_NE(host.cores[1].cache, host.cores[2].cache);
}

TEST(Topology, OnlyWhatMayBeUsed) {
  const launch::HostTopology host =
      launch::read_topology({.synthetic = kTwoSockets, .only = {1, 2, 3, 15}});
  ASSERT_EQ(host.cores.size(), 3u);
  EXPECT_THAT(host.cores[0].cpus, ElementsAre(1));
  EXPECT_THAT(host.cores[2].cpus, ElementsAre(15));
  EXPECT_THROW(launch::read_topology({.synthetic = "a castle"}), IoError);
  EXPECT_FALSE(launch::read_topology().cores.empty());  // this host
}

TEST(PlaceRanks, CoreDealsWholeCoresNearEachOther) {
  const launch::TopologyOptions host{.synthetic = "node:2 core:4 pu:2"};
  EXPECT_EQ(place(launch::BindMode::Core, 1, host), "0,1,2,3,4,5,6,7");
  EXPECT_EQ(place(launch::BindMode::Core, 2, host), "0,1,2,3,4,5,6,7 | 8,9,10,11,12,13,14,15");
  EXPECT_EQ(place(launch::BindMode::Core, 3, host), "0,1,2,3 | 4,5,6,7 | 8,9,10,11,12,13,14,15");
  EXPECT_EQ(place(launch::BindMode::Core, 8, host),
            "0,1 | 2,3 | 4,5 | 6,7 | 8,9 | 10,11 | 12,13 | 14,15");
}

TEST(PlaceRanks, SharesFollowTheCoresThatMayBeUsed) {
  const launch::TopologyOptions host{.synthetic = "node:2 core:4 pu:1", .only = {0, 1, 2, 5}};
  EXPECT_EQ(place(launch::BindMode::Core, 4, host), "0 | 1 | 2 | 5");
  EXPECT_EQ(place(launch::BindMode::Numa, 4, host), "0,1,2 | 0,1,2 | 0,1,2 | 5");
}

TEST(PlaceRanks, MoreRanksThanCores) {
  const launch::TopologyOptions host{.synthetic = "node:1 core:2 pu:2"};
  const launch::Placement placement =
      launch::place_ranks(launch::BindMode::Auto, 3, launch::read_topology(host));
  EXPECT_EQ(cpus_text(placement), " |  | ");
  EXPECT_THAT(placement.reason, HasSubstr("3 ranks, 2 cores: not bound"));
  EXPECT_THROW(place(launch::BindMode::Core, 3, host), UsageError);
  EXPECT_EQ(place(launch::BindMode::Numa, 3, host), "0,1,2,3 | 0,1,2,3 | 0,1,2,3");
}

TEST(PlaceRanks, AutoBindsWhereThereAreEnoughCores) {
  const launch::Placement placement = launch::place_ranks(
      launch::BindMode::Auto, 2, launch::read_topology({.synthetic = "node:1 core:2 pu:2"}));
  EXPECT_EQ(cpus_text(placement), "0,1 | 2,3");
  EXPECT_THAT(placement.reason, HasSubstr("bound to cores of its own"));
  EXPECT_EQ(cpus_text(launch::place_ranks(launch::BindMode::None, 2, {})), " | ");
}

TEST(PlaceRanks, TorchrunsWords) {
  const launch::TopologyOptions host{.synthetic = kTwoSockets};
  EXPECT_EQ(place(launch::BindMode::Numa, 2, host), "0,1,2,3,4,5,6,7 | 8,9,10,11,12,13,14,15");
  EXPECT_EQ(place(launch::BindMode::CoreComplex, 4, host),
            "0,1,2,3 | 4,5,6,7 | 8,9,10,11 | 12,13,14,15");
  const launch::TopologyOptions four_nodes{.synthetic = "package:2 node:2 core:1 pu:1"};
  EXPECT_EQ(place(launch::BindMode::Numa, 4, four_nodes), "0 | 1 | 2 | 3");
  EXPECT_EQ(place(launch::BindMode::Socket, 4, four_nodes), "0,1 | 0,1 | 2,3 | 2,3");
}

TEST(PlaceRanks, ARankIsNearItsGpu) {
  const launch::TopologyOptions host{.synthetic = "node:2 core:4 pu:1"};
  const std::vector<int> crossed{1, 1, 0, -1};
  EXPECT_EQ(place(launch::BindMode::Numa, 3, host, crossed), "4,5,6,7 | 4,5,6,7 | 0,1,2,3");
  EXPECT_EQ(place(launch::BindMode::Core, 3, host, crossed), "4,5 | 6,7 | 0,1,2,3");
  EXPECT_EQ(place(launch::BindMode::Numa, 4, host, crossed),
            "4,5,6,7 | 4,5,6,7 | 0,1,2,3 | 4,5,6,7");
  EXPECT_EQ(place(launch::BindMode::Numa, 2, host, {7, 7}), "0,1,2,3 | 4,5,6,7");  // no such node
}

TEST(PlaceRanks, ThreadsAreTheRanksShareOfItsCores) {
  const launch::HostTopology host = launch::read_topology({.synthetic = "node:2 core:4 pu:2"});
  EXPECT_EQ(launch::place_ranks(launch::BindMode::Core, 4, host).ranks[0].num_cores, 2);
  EXPECT_EQ(launch::place_ranks(launch::BindMode::Numa, 4, host).ranks[0].num_cores, 2);
  EXPECT_EQ(launch::place_ranks(launch::BindMode::Numa, 16, host).ranks[0].num_cores, 1);
  EXPECT_EQ(launch::place_ranks(launch::BindMode::None, 4, host).ranks[0].num_cores, 0);
}

TEST(BindToCpus, HoldsAndRefusesWhatIsNotThere) {
  const pid_t child = base::fork_child([] {
    const int cpu = launch::read_topology().cores.front().cpus.front();
    return launch::bind_to_cpus({cpu}) == 0 && ::sched_getcpu() == cpu &&
                   launch::bind_to_cpus({}) == 0 && launch::bind_to_cpus({100000}) == EINVAL
               ? 0
               : 1;
  });
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST(NumaNodesByRank, RanksThatShareGpusAreNearThem) {
  EXPECT_THAT(launch::numa_nodes_by_rank({1, 0}, 5, true), ElementsAre(1, 0, 1, 0, 1));
  EXPECT_THAT(launch::numa_nodes_by_rank({1, 0}, 5, false), ElementsAre(1, 0));
  EXPECT_THAT(launch::numa_nodes_by_rank({1, 0}, 1, true), ElementsAre(1, 0));
  EXPECT_TRUE(launch::numa_nodes_by_rank({}, 3, true).empty());
}

}  // namespace
}  // namespace lockstep
