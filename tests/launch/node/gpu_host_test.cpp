// `lockstep run` on a host with four GPUs and two NUMA nodes, made of files in a mount namespace of
// the test's own.

#include <unistd.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/job.h"
#include "support/service.h"

namespace lockstep::test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

// GPUs 0 and 3 are near NUMA node 1, the others near node 0. hwloc reads HWLOC_SYNTHETIC: cores 0
// and 1 are node 0's.
constexpr const char* kHost = R"(set -e
mount -t tmpfs none {0} && mkdir {0}/new {0}/work
mount -t overlay none -o lowerdir=/dev,upperdir={0}/new,workdir={0}/work /dev
for name in nvidia0 nvidia1 nvidia2 nvidia3 nvidiactl; do mknod /dev/$name c 1 3; done
mount -t tmpfs none /proc/driver
mount -t tmpfs none /sys/bus/pci/devices
gpu() {{
  mkdir -p /proc/driver/nvidia/gpus/$1 /sys/bus/pci/devices/$1
  printf 'Model: \t H200\nGPU UUID: \t %s\n' $2 > /proc/driver/nvidia/gpus/$1/information
  echo $3 > /sys/bus/pci/devices/$1/numa_node
}}
gpu 0000:d1:00.0 GPU-dd 1
gpu 0000:17:00.0 GPU-aa 1
gpu 0000:c1:00.0 GPU-cc 0
gpu 0000:b1:00.0 GPU-bb 0
export HWLOC_SYNTHETIC='node:2 core:2 pu:1'
)";

class GpuHost : public ::testing::Test {
 protected:
  void SetUp() override {
    const base::Output probe = shell("echo ready");
    LOCKSTEP_NEEDS("namespaces", probe.out == "ready\n" ? std::nullopt : std::optional(probe.err));
  }

  base::Output shell(const std::string& script) {
    return base::run_process(
        {.argv = {"unshare", "--mount", "sh", "-c", fmt::format(kHost, folder_.path()) + script}},
        base::Deadline::after(kPatience));
  }

  // What `lockstep run --dry-run FLAGS` says of each rank, after OMP_NUM_THREADS.
  std::vector<std::string> ranks(const std::string& flags, const std::string& visible = "") {
    const std::string prefix = visible.empty() ? "" : "CUDA_VISIBLE_DEVICES=" + visible + " ";
    const base::Output output =
        shell(fmt::format("{}{} run --dry-run {} true", prefix, lockstep_program(), flags));
    std::vector<std::string> found;
    for (const std::string& line : lines(output.out)) {
      if (line.find("OMP_NUM_THREADS=") != std::string::npos) {
        const size_t comma = line.find(", ");
        found.push_back(comma == std::string::npos ? "" : line.substr(comma + 2));
      }
    }
    EXPECT_FALSE(found.empty()) << output.err;
    return found;
  }

  TempFolder folder_;
};

TEST_F(GpuHost, RanksRunNearTheirGpus) {
  EXPECT_THAT(ranks("--nproc-per-node gpu --numa-binding node"),
              ElementsAre("on cores 2,3", "on cores 0,1", "on cores 0,1", "on cores 2,3"));
  EXPECT_THAT(ranks("--nproc-per-node gpu --numa-binding node", "GPU-b,GPU-d"),
              ElementsAre("on cores 0,1", "on cores 2,3"));
  EXPECT_THAT(ranks("--nproc-per-node auto --numa-binding exclusive", "3,0"),
              ElementsAre("on cores 2", "on cores 3"));
  EXPECT_THAT(ranks("--nproc-per-node 4 --share-gpu --bind numa", "1,3"),
              ElementsAre("on cores 0,1", "on cores 2,3", "on cores 0,1", "on cores 2,3"));
}

TEST_F(GpuHost, EmulatedNodesSeeGpusOfTheirOwn) {
  EXPECT_THAT(ranks("--nproc-per-node gpu --local-nodes 2 --bind numa"),
              ElementsAre("on cores 2,3, CUDA_VISIBLE_DEVICES=0,1",
                          "on cores 0,1, CUDA_VISIBLE_DEVICES=0,1",
                          "on cores 0,1, CUDA_VISIBLE_DEVICES=2,3",
                          "on cores 2,3, CUDA_VISIBLE_DEVICES=2,3"));
  EXPECT_THAT(ranks("--nproc-per-node 2 --local-nodes 2", "2"), ElementsAre("", "", "", ""));
}

TEST_F(GpuHost, RanksAreToldTheirGpu) {
  const auto told = [&](const std::string& flags) {
    return lines(shell(fmt::format("{} run --no-prefix {} sh -c 'echo $LOCAL_RANK "
                                   "$LOCKSTEP_GPU_INDEX ${{CUDA_VISIBLE_DEVICES-unset}} "
                                   "${{LOCKSTEP_SHARE_GPU-unset}}'",
                                   lockstep_program(), flags))
                     .out);
  };
  EXPECT_THAT(told("--nproc-per-node 2"),
              UnorderedElementsAre("0 0 unset unset", "1 1 unset unset"));
  EXPECT_THAT(told("--local-nodes 2"), UnorderedElementsAre("0 0 0 unset", "0 0 1 unset"));
  EXPECT_THAT(told("--local-nodes 5 --share_gpu"),
              UnorderedElementsAre("0 0 unset 1", "0 1 unset 1", "0 2 unset 1", "0 3 unset 1",
                                   "0 0 unset 1"));
  EXPECT_THAT(told("--nproc-per-node 2 --virtual-local-rank"),
              UnorderedElementsAre("0 0 0 unset", "0 0 1 unset"));
}

TEST_F(GpuHost, WhatCannotBeDealtIsRefused) {
  const auto refusal = [&](const std::string& command) {
    const base::Output output = shell(fmt::format("{} true", command));
    EXPECT_EQ(output.status.code, 2);
    return output.err;
  };
  const std::string run = lockstep_program() + " run ";
  EXPECT_THAT(refusal("CUDA_VISIBLE_DEVICES=-1 " + run + "--nproc-per-node gpu"),
              HasSubstr("there is no GPU here"));
  EXPECT_THAT(refusal("LOCKSTEP_DEVICE=cpu " + run + "--nproc-per-node gpu"),
              HasSubstr("LOCKSTEP_DEVICE=cpu says that GPUs are left alone"));
  EXPECT_THAT(refusal("CUDA_VISIBLE_DEVICES=7 " + run + "--nproc-per-node gpu"),
              HasSubstr("there is no GPU here"));
  EXPECT_THAT(refusal("CUDA_VISIBLE_DEVICES=1 " + run + "--nproc-per-node gpu --local-nodes 2"),
              HasSubstr("one GPU cannot be dealt out to 2 emulated nodes"));
  EXPECT_THAT(refusal(run + "--nproc-per-node 5 --virtual-local-rank"),
              AllOf(HasSubstr("this host has 4 GPUs, none for rank 4"), HasSubstr("--share-gpu")));
}

}  // namespace
}  // namespace lockstep::test
