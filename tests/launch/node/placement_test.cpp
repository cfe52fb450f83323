// On made-up machines: what comes out does not depend on the one that runs the test.

#include "launch/node/placement.h"

#include <filesystem>
#include <sched.h>
#include <sys/wait.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "base/process/fork.h"
#include "base/unique_fd.h"
#include "launch/node/gpus.h"
#include "support/job.h"

namespace lockstep {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

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

TEST(VirtualLocalRank, EveryRankSeesItsGpuAsTheFirst) {
  std::vector<std::string> env{"LOCAL_RANK=2", "RANK=6", "CUDA_VISIBLE_DEVICES=4,5,GPU-ab"};
  launch::set_virtual_local_rank(2, env);
  EXPECT_THAT(env, Contains("CUDA_VISIBLE_DEVICES=GPU-ab"));
  EXPECT_THAT(env, Contains("LOCAL_RANK=0"));
  EXPECT_THAT(env, Contains("RANK=6"));
  EXPECT_EQ(env.size(), 3u);
  std::vector<std::string> bare{"LOCAL_RANK=3"};
  launch::set_virtual_local_rank(3, bare);
  EXPECT_THAT(bare, Contains("CUDA_VISIBLE_DEVICES=3"));
  std::vector<std::string> few{"CUDA_VISIBLE_DEVICES=0,1"};
  EXPECT_THROW(launch::set_virtual_local_rank(2, few), UsageError);
}

// Files under a folder that plays "/".
class Gpus : public ::testing::Test {
 protected:
  void file(const std::string& path, const std::string& text) {
    fs::create_directories(fs::path(folder_.path() + path).parent_path());
    base::write_file_atomically(folder_.path() + path, text);
  }

  void gpu(const std::string& address, const std::string& uuid, const std::string& node) {
    file("/proc/driver/nvidia/gpus/" + address + "/information",
         "Model: \t\t NVIDIA H200\nGPU UUID: \t " + uuid + "\nDevice Minor: \t 0\n");
    file("/sys/bus/pci/devices/" + address + "/numa_node", node + "\n");
  }

  test::TempFolder folder_;
};

TEST_F(Gpus, AreCountedByDeviceOrByWhatIsVisible) {
  EXPECT_EQ(launch::count_gpus(folder_.path(), std::nullopt), 0);
  for (const char* name : {"nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "null"}) {
    file(std::string("/dev/") + name, "");
  }
  EXPECT_EQ(launch::count_gpus(folder_.path(), std::nullopt), 2);
  EXPECT_EQ(launch::count_gpus(folder_.path(), ""), 0);
  EXPECT_EQ(launch::count_gpus(folder_.path(), "3, 5,GPU-1,MIG-2"), 4);
  EXPECT_EQ(launch::count_gpus(folder_.path(), "3,-1,5"), 1);
  EXPECT_EQ(launch::count_gpus(folder_.path(), "NoDevFiles"), 0);
}

TEST_F(Gpus, KnowTheirNumaNode) {
  EXPECT_TRUE(launch::gpu_numa_nodes(folder_.path(), std::nullopt).empty());
  gpu("0000:b1:00.0", "GPU-bb", "1");
  gpu("0000:17:00.0", "GPU-aa", "0");
  gpu("0000:ff:00.0", "GPU-cc", "-1");
  file("/proc/driver/nvidia/gpus/0001:00:00.0/information", "");
  EXPECT_THAT(launch::gpu_numa_nodes(folder_.path(), std::nullopt), ElementsAre(0, 1, -1, -1));
  EXPECT_THAT(launch::gpu_numa_nodes(folder_.path(), "1,0"), ElementsAre(1, 0));
  EXPECT_THAT(launch::gpu_numa_nodes(folder_.path(), "GPU-bb,9,GPU-zz"), ElementsAre(1, -1, -1));
}

}  // namespace
}  // namespace lockstep
