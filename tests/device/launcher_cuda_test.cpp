// `lockstep run` deals real GPUs to ranks that want them.

#include <algorithm>
#include <filesystem>
#include <map>
#include <sstream>

#include <ATen/Context.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/process/process.h"
#include "support/gpu.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

class LauncherOnAGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    LOCKSTEP_NEEDS_GPU();
    num_gpus_ = static_cast<int>(at::getNumGPUs());
  }

  // `lockstep run FLAGS local_device_rank`.
  base::Output run(std::vector<std::string> flags, std::map<std::string, std::string> env = {}) {
    const fs::path folder = fs::path(base::own_program()).parent_path();
    std::vector<std::string> argv{(folder / "lockstep").string(), "run", "--no-prefix"};
    argv.insert(argv.end(), flags.begin(), flags.end());
    argv.push_back((folder / "local_device_rank").string());
    return base::run_process({.argv = std::move(argv), .env = std::move(env)},
                             base::Deadline::after(std::chrono::seconds(90)));
  }

  static std::vector<std::string> sorted_lines(const std::string& text) {
    std::vector<std::string> lines;
    std::istringstream stream(text);
    for (std::string line; std::getline(stream, line);) {
      lines.push_back(line);
    }
    std::sort(lines.begin(), lines.end());
    return lines;
  }

  int num_gpus_ = 0;
};

TEST_F(LauncherOnAGpu, CountsThem) {
  std::vector<std::string> expected;
  for (int rank = 0; rank < num_gpus_; ++rank) {
    expected.push_back(fmt::format("rank {0} cuda:{0} 10", rank));
  }
  for (const char* word : {"gpu", "auto"}) {
    const base::Output output = run({"--nproc-per-node", word});
    EXPECT_EQ(sorted_lines(output.out), expected) << output.err;
  }
}

TEST_F(LauncherOnAGpu, MoreRanksThanGpusOnlyShareIfTheyAreTold) {
  const std::string one_more = std::to_string(num_gpus_ + 1);
  const base::Output refused = run({"--nproc-per-node", one_more});
  EXPECT_EQ(refused.status.code, 2) << refused.out;
  EXPECT_THAT(refused.err, AllOf(HasSubstr(fmt::format("local rank {} has no GPU", num_gpus_)),
                                 HasSubstr("--share-gpu")));
  const base::Output shared = run({"--nproc-per-node", one_more, "--share-gpu"});
  EXPECT_TRUE(shared.status.ok()) << shared.err;
  EXPECT_THAT(shared.out, HasSubstr(fmt::format("rank {} cuda:0 10\n", num_gpus_)));
}

// LOCAL_RANK is 0 on both nodes.
TEST_F(LauncherOnAGpu, EmulatedNodesDoNotMeetOnOne) {
  const std::map<std::string, std::string> one{{"CUDA_VISIBLE_DEVICES", "0"}};
  const base::Output refused = run({"--local-nodes", "2"}, one);
  EXPECT_EQ(refused.status.code, 2) << refused.out;
  EXPECT_THAT(refused.err, HasSubstr("local rank 0, which is number 1 on this host"));
  EXPECT_THAT(sorted_lines(run({"--local_nodes=2", "--share_gpu"}, one).out),
              ElementsAre("rank 0 cuda:0 10", "rank 1 cuda:0 10"));
  const base::Output early = run({"--local-nodes", "2", "--nproc-per-node", "gpu"}, one);
  EXPECT_EQ(early.status.code, 2);
  EXPECT_THAT(early.err, HasSubstr("one GPU cannot be dealt out to 2 emulated nodes"));
}

TEST_F(LauncherOnAGpu, VirtualLocalRankWorksForOurOwnPrograms) {
  EXPECT_THAT(sorted_lines(run({"--nproc-per-node", "2", "--virtual-local-rank", "--share-gpu"},
                               {{"CUDA_VISIBLE_DEVICES", "0"}})
                               .out),
              ElementsAre("rank 0 cuda:0 10", "rank 1 cuda:0 10"));
}

TEST_F(LauncherOnAGpu, AHiddenGpuIsNone) {
  const base::Output gpu = run({"--nproc-per-node", "gpu"}, {{"CUDA_VISIBLE_DEVICES", "-1"}});
  EXPECT_EQ(gpu.status.code, 2);
  EXPECT_THAT(gpu.err, HasSubstr("there is no GPU here"));
  const base::Output cpu = run({"--nproc-per-node", "3"}, {{"LOCKSTEP_DEVICE", "cpu"}});
  EXPECT_THAT(sorted_lines(cpu.out), ElementsAre("rank 0 cpu 10", "rank 1 cpu 10", "rank 2 cpu 10"))
      << cpu.err;
}

}  // namespace
}  // namespace lockstep
