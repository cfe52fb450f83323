// `lockstep run --dry-run` says what would run where, and does nothing.

#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/network.h"
#include "support/job.h"

namespace lockstep::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class DryRun : public ::testing::Test {
 protected:
  // `lockstep run --dry-run ARGUMENTS`; its words, with HOST for this host's name.
  std::string text(std::vector<std::string> arguments,
                   std::map<std::string, std::string> env = {}) {
    arguments.insert(arguments.begin(), {"run", "--dry-run"});
    env["XDG_CONFIG_HOME"] = folder_.path();
    const base::Output output = run_lockstep(std::move(arguments), std::move(env));
    EXPECT_TRUE(output.status.ok()) << output.err;
    EXPECT_EQ(output.err, "");
    EXPECT_TRUE(std::filesystem::is_empty(folder_.path())) << "something was written";
    std::string out = output.out;
    const std::string host = " on " + base::host_name() + ":";
    for (size_t at = out.find(host); at != std::string::npos; at = out.find(host)) {
      out.replace(at, host.size(), " on HOST:");
    }
    return out;
  }

  TempFolder folder_;
};

TEST_F(DryRun, OneNode) {
  const std::string ran = folder_.path() + "/ran";
  EXPECT_EQ(text({"--nproc-per-node=2", "touch", ran, "{rank} of {world_size}"},
                 {{"OMP_NUM_THREADS", "3"}}),
            "node 0 on HOST: ranks 0-1 of 2\n"
            "  rank 0: touch " +
                ran +
                " '0 of 2'\n"
                "    OMP_NUM_THREADS=3\n"
                "  rank 1: touch " +
                ran +
                " '1 of 2'\n"
                "    OMP_NUM_THREADS=3\n");
  EXPECT_THAT(text({"--log-dir", folder_.path() + "/logs", "true"}),
              HasSubstr(", log " + folder_.path() + "/logs/"));
}

TEST_F(DryRun, EmulatedNodes) {
  EXPECT_THAT(text({"--nproc-per-node=2", "--local-nodes=2", "true"}),
              AllOf(HasSubstr("node 0 on HOST: ranks 0-1 of 4\n  rank 0: true\n"),
                    HasSubstr("node 1 on HOST: ranks 2-3 of 4\n  rank 2: true\n")));
}

TEST_F(DryRun, SeveralNodesByTheirNumbers) {
  const std::string out = text({"--nnodes=2", "--node-rank=1", "--master-addr=127.0.0.1", "true"});
  EXPECT_THAT(out,
              AllOf(HasSubstr("have their rendezvous at 127.0.0.1:29500; this host joins there\n"),
                    HasSubstr("node 1 on HOST: rank 1 of 2\n")));
}

TEST_F(DryRun, SeveralNodesAsTheyCome) {
  const std::string out = text({"--nnodes=1:3", "--rdzv-backend=c10d", "--rdzv-id=night",
                                "--rdzv-endpoint=127.0.0.1:29400", "true"});
  EXPECT_THAT(
      out,
      AllOf(
          HasSubstr("1 to 3 nodes of job night have their rendezvous at 127.0.0.1:29400; this host "
                    "listens there\n"),
          HasSubstr("as the first node it would have:\n"
                    "node 0 on HOST: rank 0 of 3\n")));
}

TEST_F(DryRun, AnImage) {
  const std::vector<std::string> flags{"--image=/no/job.sqsh", "--mount=/etc:/data:ro", "train"};
  EXPECT_THAT(text(flags), AllOf(HasSubstr("image /no/job.sqsh by lockstep itself\n"
                                           "  /data is /etc, read-only\n"),
                                 HasSubstr("  rank 0: train\n")));
  std::vector<std::string> other = flags;
  other.insert(other.begin(), "--container-runtime=apptainer");
  EXPECT_THAT(text(other),
              HasSubstr("  rank 0: apptainer exec --bind /etc:/data:ro /no/job.sqsh train\n"));
}

TEST_F(DryRun, GpusThatRanksSee) {
  EXPECT_THAT(text({"--nproc-per-node=2", "--virtual_local_rank", "true"},
                   {{"CUDA_VISIBLE_DEVICES", "5,7"}, {"OMP_NUM_THREADS", "1"}}),
              AllOf(HasSubstr("    OMP_NUM_THREADS=1, CUDA_VISIBLE_DEVICES=5\n"),
                    HasSubstr("    OMP_NUM_THREADS=1, CUDA_VISIBLE_DEVICES=7\n")));
}

TEST_F(DryRun, HostsThatCountTheirGpus) {
  EXPECT_THAT(text({"--nproc-per-node=gpu", "--hosts=localhost,192.0.2.7:3", "true"}),
              AllOf(HasSubstr("node 0 on localhost: as many ranks as it counts there\n"),
                    HasSubstr("node 1 on 192.0.2.7: 3 ranks\n")));
}

TEST_F(DryRun, ABatchScriptOfSlurm) {
  const std::string out =
      text({"--nproc-per-node=4", "train"}, {{"SLURM_JOB_ID", "7"}, {"SLURM_JOB_NUM_NODES", "2"}});
  EXPECT_EQ(lines(out).size(), 1u) << out;
  EXPECT_THAT(out,
              AllOf(HasSubstr("srun '--nodes=2'"), HasSubstr("run '--nproc-per-node=4' -- train"),
                    Not(HasSubstr("dry-run"))));
}

}  // namespace
}  // namespace lockstep::test
