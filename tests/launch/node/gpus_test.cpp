// Made-up machines: which GPUs a program sees there, where they are, and which rank gets which.

#include "launch/node/gpus.h"

#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "base/unique_fd.h"
#include "launch/node/gpu_deal.h"
#include "launch/plan.h"
#include "support/job.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;
namespace fs = std::filesystem;
using Names = std::vector<std::string>;

// Files under a folder that plays "/".
class Gpus : public ::testing::Test {
 protected:
  void file(const std::string& path, const std::string& text = "") {
    fs::create_directories(fs::path(folder_.path() + path).parent_path());
    base::write_file_atomically(folder_.path() + path, text);
  }

  void devices(int count) {
    for (int i = 0; i < count; ++i) {
      file("/dev/nvidia" + std::to_string(i));
    }
    for (const char* name : {"nvidiactl", "nvidia-uvm", "nvidia-modeset", "null"}) {
      file(std::string("/dev/") + name);
    }
  }

  void gpu(const std::string& address, const std::string& uuid, const std::string& node) {
    file("/proc/driver/nvidia/gpus/" + address + "/information",
         "Model: \t\t NVIDIA H200\nGPU UUID: \t " + uuid + "\nDevice Minor: \t 0\n");
    file("/sys/bus/pci/devices/" + address + "/numa_node", node + "\n");
  }

  Names seen(const std::optional<std::string>& visible) {
    return launch::visible_gpus(folder_.path(), visible);
  }

  test::TempFolder folder_;
};

TEST_F(Gpus, AreTheDevicesOrWhatIsVisibleOfThem) {
  EXPECT_THAT(seen(std::nullopt), IsEmpty());
  devices(6);
  EXPECT_THAT(seen(std::nullopt), ElementsAre("0", "1", "2", "3", "4", "5"));
  EXPECT_THAT(seen(""), IsEmpty());
  EXPECT_THAT(seen("-1"), IsEmpty());
  EXPECT_THAT(seen("NoDevFiles"), IsEmpty());
  EXPECT_THAT(seen("3, 5"), ElementsAre("3", "5"));
  EXPECT_THAT(seen("3,-1,5"), ElementsAre("3"));
}

// As CUDA reads the list, which is not always as it was meant.
TEST_F(Gpus, AreReadAsCudaReadsThem) {
  devices(6);
  EXPECT_THAT(seen("1,6,2"), ElementsAre("1")) << "there is no GPU 6: it ends the list";
  EXPECT_THAT(seen("2,0,2"), IsEmpty()) << "twice";
  EXPECT_THAT(seen("+1,02"), ElementsAre("1", "2"));
  EXPECT_THAT(seen("1x,2"), ElementsAre("1", "2"));
  EXPECT_THAT(seen("1,,2"), ElementsAre("1"));
  EXPECT_THAT(seen("1,GPU-aa"), ElementsAre("1")) << "of another kind";
  EXPECT_THAT(seen("GPU-aa,1"), ElementsAre("GPU-aa"));
  EXPECT_THAT(seen("MIG-1,MIG-2,GPU-aa"), ElementsAre("MIG-1", "MIG-2"));
  EXPECT_THAT(seen("99999999999999999999"), IsEmpty());
}

TEST_F(Gpus, NamesAreThoseThatTheDriverTells) {
  devices(2);
  gpu("0000:17:00.0", "GPU-8a-17", "0");
  gpu("0000:b1:00.0", "GPU-8b-b1", "1");
  EXPECT_THAT(seen("GPU-8b,GPU-8a-17"), ElementsAre("GPU-8b", "GPU-8a-17"));
  EXPECT_THAT(seen("GPU-8b,GPU-9"), ElementsAre("GPU-8b")) << "there is no GPU-9";
  EXPECT_THAT(seen("GPU-8"), IsEmpty()) << "it could be either";
}

// A variable that a shell or a container left behind is not a GPU.
TEST_F(Gpus, AListAloneIsNone) {
  EXPECT_THAT(seen("0,1"), IsEmpty());
  EXPECT_THAT(seen("GPU-aa"), IsEmpty());
}

// Windows' driver, in WSL 2, stands for GPUs of every vendor.
TEST_F(Gpus, OfWindowsCountWhereItsDriverIsNvidias) {
  file("/dev/dxg");
  EXPECT_THAT(seen(std::nullopt), IsEmpty()) << "Intel's or AMD's";
  EXPECT_THAT(seen("0,1"), IsEmpty());
  file("/usr/lib/wsl/drivers/iigd_dch.inf_amd64_1/libdxcore.so");
  EXPECT_THAT(seen(std::nullopt), IsEmpty());
  file("/usr/lib/wsl/lib/libcuda.so.1");
  EXPECT_THAT(seen("0,1"), ElementsAre("0", "1"));
  EXPECT_THAT(seen(std::nullopt), ElementsAre("0"));
}

TEST_F(Gpus, OfWindowsCountInAContainerToo) {
  file("/dev/dxg");
  file("/usr/lib/wsl/drivers/nv_dispi.inf_amd64_2/libcuda.so.1.1");
  EXPECT_THAT(seen(std::nullopt), ElementsAre("0"));
}

TEST_F(Gpus, OfAJetsonAreOne) {
  for (const char* device : {"/dev/nvhost-ctrl-gpu", "/dev/nvgpu"}) {
    file(device);
    EXPECT_THAT(seen(std::nullopt), ElementsAre("0")) << device;
    fs::remove(folder_.path() + device);
    EXPECT_THAT(seen(std::nullopt), IsEmpty()) << device;
  }
}

TEST_F(Gpus, OneThatIsNotNumberZeroCounts) {
  file("/dev/nvidia3");
  file("/dev/nvidiactl");
  EXPECT_THAT(seen(std::nullopt), ElementsAre("0")) << "CUDA counts those that are there";
}

TEST_F(Gpus, KnowTheirNumaNode) {
  EXPECT_TRUE(launch::gpu_numa_nodes(folder_.path(), std::nullopt).empty());
  gpu("0000:b1:00.0", "GPU-bb", "1");
  gpu("0000:17:00.0", "GPU-aa", "0");
  gpu("0000:ff:00.0", "GPU-cc", "-1");
  file("/proc/driver/nvidia/gpus/0001:00:00.0/information", "");
  EXPECT_THAT(launch::gpu_numa_nodes(folder_.path(), std::nullopt), ElementsAre(0, 1, -1, -1));
  EXPECT_THAT(launch::gpu_numa_nodes(folder_.path(), "1,0"), ElementsAre(1, 0));
  EXPECT_THAT(launch::gpu_numa_nodes(folder_.path(), "GPU-bb,GPU-zz"), ElementsAre(1));
  EXPECT_THAT(launch::gpu_numa_nodes(folder_.path(), "1,0,99"), ElementsAre(1, 0))
      << "ranks that share them take turns among these";
  EXPECT_THAT(launch::gpu_numa_nodes(folder_.path(), "MIG-GPU-bb/1/0,MIG-6f"), ElementsAre(1, -1));
}

// "0|3|..." : the number, after the list of what the rank sees if it is not what the job sees.
Names deal(const launch::GpuDealOptions& options) {
  Names texts;
  for (const launch::RankGpu& rank : launch::deal_gpus(options)) {
    texts.push_back((rank.visible ? *rank.visible + ":" : "") + std::to_string(rank.number));
  }
  return texts;
}

std::string refusal(const launch::GpuDealOptions& options) {
  try {
    launch::deal_gpus(options);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "it passed";
}

const Names kFour{"0", "1", "2", "3"};

TEST(DealGpus, ARankHasTheGpuOfItsNumber) {
  EXPECT_THAT(deal({.gpus = kFour, .procs_per_node = 3}), ElementsAre("0", "1", "2"));
  EXPECT_THAT(deal({.gpus = {}, .procs_per_node = 2}), ElementsAre("0", "1"));
  // The third rank has none, which is an error of the program's if it wants one.
  EXPECT_THAT(deal({.gpus = {"5", "7"}, .procs_per_node = 3}), ElementsAre("0", "1", "2"));
}

TEST(DealGpus, EmulatedNodesHaveGpusOfTheirOwn) {
  EXPECT_THAT(deal({.gpus = kFour, .num_nodes = 2, .procs_per_node = 2}),
              ElementsAre("0,1:0", "0,1:1", "2,3:0", "2,3:1"));
  EXPECT_THAT(deal({.gpus = {"6", "4", "5"}, .num_nodes = 3, .procs_per_node = 1}),
              ElementsAre("6:0", "4:0", "5:0"));
  // Too few: no two ranks have the same number, so that none shares unless it is told to.
  EXPECT_THAT(deal({.gpus = {"0"}, .num_nodes = 2, .procs_per_node = 1}), ElementsAre("0", "1"));
  EXPECT_THAT(deal({.gpus = {"0", "1", "2"}, .num_nodes = 2, .procs_per_node = 2}),
              ElementsAre("0", "1", "2", "3"));
  EXPECT_THAT(deal({.gpus = {}, .num_nodes = 2, .procs_per_node = 2}),
              ElementsAre("0", "1", "2", "3"));
}

TEST(DealGpus, RanksThatShareTakeTurns) {
  EXPECT_THAT(deal({.gpus = {"5", "7"}, .procs_per_node = 5, .share = true}),
              ElementsAre("0", "1", "0", "1", "0"));
  EXPECT_THAT(deal({.gpus = {"0", "1", "2"}, .num_nodes = 2, .procs_per_node = 2, .share = true}),
              ElementsAre("0", "1", "2", "0"));
  EXPECT_THAT(deal({.gpus = {}, .procs_per_node = 2, .share = true}), ElementsAre("0", "1"));
}

// CUDA shows a process one of them, the first.
TEST(DealGpus, MigDevicesAreDealtOneByOne) {
  EXPECT_THAT(deal({.gpus = {"MIG-a", "MIG-b"}, .procs_per_node = 2}),
              ElementsAre("MIG-a:0", "MIG-b:0"));
  EXPECT_THAT(deal({.gpus = {"MIG-a", "MIG-b"}, .num_nodes = 2, .procs_per_node = 1}),
              ElementsAre("MIG-a:0", "MIG-b:0"));
  EXPECT_THAT(deal({.gpus = {"MIG-a", "MIG-b"}, .procs_per_node = 3}),
              ElementsAre("MIG-a:0", "MIG-b:0", "2"));
  EXPECT_THAT(deal({.gpus = {"MIG-a", "MIG-b"}, .procs_per_node = 3, .share = true}),
              ElementsAre("MIG-a:0", "MIG-b:0", "MIG-a:0"));
}

TEST(DealGpus, VirtualLocalRankShowsOneEach) {
  EXPECT_THAT(
      deal({.gpus = {"4", "5", "6"}, .visible = "4,5,6", .procs_per_node = 3, .one_each = true}),
      ElementsAre("4:0", "5:0", "6:0"));
  EXPECT_THAT(deal({.gpus = kFour, .num_nodes = 2, .procs_per_node = 2, .one_each = true}),
              ElementsAre("0:0", "1:0", "2:0", "3:0"));
  EXPECT_THAT(deal({.gpus = {"5"}, .procs_per_node = 2, .share = true, .one_each = true}),
              ElementsAre("5:0", "5:0"));
  // No driver: the list is taken at its word, or the numbers are those of the ranks.
  EXPECT_THAT(deal({.visible = "5,7", .procs_per_node = 2, .one_each = true}),
              ElementsAre("5:0", "7:0"));
  EXPECT_THAT(deal({.procs_per_node = 2, .one_each = true}), ElementsAre("0:0", "1:0"));
}

TEST(DealGpus, VirtualLocalRankNeedsAGpuForEach) {
  EXPECT_THAT(
      refusal({.gpus = {"5", "7"}, .visible = "5,7", .procs_per_node = 3, .one_each = true}),
      AllOf(HasSubstr("CUDA_VISIBLE_DEVICES=5,7 names 2 GPUs, none for rank 2"),
            HasSubstr("at most 2 ranks"), HasSubstr("--share-gpu")));
  EXPECT_THAT(refusal({.gpus = {"0"}, .num_nodes = 2, .procs_per_node = 1, .one_each = true}),
              HasSubstr("this host has 1 GPU, none for rank 1"));
  EXPECT_THAT(refusal({.visible = "", .procs_per_node = 1, .share = true, .one_each = true}),
              AllOf(HasSubstr("names 0 GPUs"), Not(HasSubstr("--share-gpu"))));
}

TEST(PlanNodes, GivesRanksTheirGpu) {
  const auto env_of = [](launch::PlacementOptions placement, const Names& inherited) {
    return launch::plan_nodes({.procs_per_node = 1,
                               .local_nodes = 2,
                               .placement = placement,
                               .isolation = base::IsolationMode::Guardian,
                               .command = {"x"}},
                              {.id = "job", .place = {.num_nodes = 2, .world_size = 2}}, inherited)
        .at(1)
        .workers.at(0)
        .env;
  };
  const Names plain = env_of({}, {"LOCKSTEP_GPU_INDEX=7", "CUDA_VISIBLE_DEVICES="});
  EXPECT_THAT(plain, AllOf(Contains("LOCKSTEP_GPU_INDEX=1"), Contains("CUDA_VISIBLE_DEVICES="),
                           Not(Contains(StartsWith("LOCKSTEP_SHARE_GPU")))));
  EXPECT_THAT(env_of({}, {"LOCKSTEP_SHARE_GPU=0"}), Contains("LOCKSTEP_SHARE_GPU=0"));
  EXPECT_THAT(env_of({.share_gpu = true}, {"LOCKSTEP_SHARE_GPU=0"}),
              AllOf(Contains("LOCKSTEP_SHARE_GPU=1"), Not(Contains("LOCKSTEP_SHARE_GPU=0"))));
  EXPECT_THAT(env_of({.virtual_local_rank = true}, {"CUDA_VISIBLE_DEVICES=5,7"}),
              AllOf(Contains("CUDA_VISIBLE_DEVICES=7"), Contains("LOCKSTEP_GPU_INDEX=0"),
                    Contains("LOCAL_RANK=0"), Not(Contains("CUDA_VISIBLE_DEVICES=5,7"))));
}

}  // namespace
}  // namespace lockstep
