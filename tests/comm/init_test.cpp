// init() under each way of being started. Ranks are this binary again, run with the variables of a
// launcher.

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <lockstep/base/error.h>
#include <lockstep/comm/init.h>

#include "base/process/process.h"
#include "base/secret.h"
#include "base/socket.h"
#include "base/store/store_server.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using Variables = std::map<std::string, std::string>;

// Run in a process of its own by the tests below.
TEST(InitChild, DISABLED_SumsRanks) {
  Group group = init({.timeout = 20s, .start_timeout = 20s});
  at::Tensor x = at::full({1}, group.rank() + 1, at::kLong);
  group.all_reduce(x);
  printf("size=%d sum=%d backend=%s\n", group.size(), static_cast<int>(x.item<int64_t>()),
         group.backend_name().c_str());
  if (group.size() > 1) {  // what a library that wants the group for itself might do
    try {
      init({.timeout = 20s, .start_timeout = 20s});
      ADD_FAILURE() << "a second world";
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), HasSubstr("call init() once"));
    }
    group.barrier();  // the first one is as it was
  }
}

// Starts one child per set of variables, all at once, and returns what each printed on both
// streams.
std::vector<base::Output> run_children(const std::vector<Variables>& all) {
  std::vector<std::thread> threads;
  std::vector<base::Output> outputs(all.size());
  // A child dies with the thread that started it (its death signal), so each thread stays until the
  // end.
  for (size_t i = 0; i < all.size(); ++i) {
    threads.emplace_back([&, i] {
      base::ProcessOptions options;
      options.argv = {"/proc/self/exe", "--gtest_also_run_disabled_tests",
                      "--gtest_filter=InitChild.DISABLED_SumsRanks"};
      options.env = all[i];
      outputs[i] = base::run_process(options, base::Deadline::after(40s));
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  return outputs;
}

void expect_sums(const std::vector<base::Output>& outputs) {
  const int world = static_cast<int>(outputs.size());
  const std::string line = fmt::format("size={} sum={}", world, world * (world + 1) / 2);
  for (const base::Output& output : outputs) {
    EXPECT_THAT(output.out, HasSubstr(line)) << output.err;
    EXPECT_EQ(output.status.code, 0) << output.err;
  }
}

uint16_t free_port() {
  return base::Listener({"127.0.0.1", 0}).endpoint().port;
}

TEST(Init, WithoutALauncherIsAGroupOfOne) {
  const auto outputs = run_children({{}});
  EXPECT_THAT(outputs[0].out, HasSubstr("size=1 sum=1 backend=single"));
  EXPECT_THAT(outputs[0].err, HasSubstr("a group of one (no launcher)"));
}

TEST(Init, UnderLockstepRunsVariables) {
  const std::string secret = base::make_secret();
  base::StoreServer server({.job_id = "j", .secret = secret});
  server.begin_generation(0);
  server.start();
  std::vector<Variables> all;
  for (int rank = 0; rank < 3; ++rank) {
    all.push_back({{"LOCKSTEP_RANK", std::to_string(rank)},
                   {"LOCKSTEP_WORLD_SIZE", "3"},
                   {"LOCKSTEP_STORE", server.endpoint().text()},
                   {"LOCKSTEP_JOB_ID", "j"},
                   {"LOCKSTEP_JOB_SECRET", secret}});
  }
  const auto outputs = run_children(all);
  expect_sums(outputs);
  EXPECT_THAT(
      outputs[0].err,
      HasSubstr("3 ranks from lockstep run; backend shm: all 3 ranks share this host's memory"));
  EXPECT_EQ(outputs[1].err, "") << "said once";
}

TEST(Init, UnderABareRankWhereRankZeroHostsTheStore) {
  const std::string port = std::to_string(free_port());
  std::vector<Variables> all;
  for (int rank = 0; rank < 2; ++rank) {
    all.push_back({{"RANK", std::to_string(rank)},
                   {"WORLD_SIZE", "2"},
                   {"MASTER_ADDR", "127.0.0.1"},
                   {"MASTER_PORT", port}});
  }
  const auto outputs = run_children(all);
  expect_sums(outputs);
  EXPECT_THAT(outputs[0].err, HasSubstr("lets in anyone")) << "no secret: said";
}

TEST(Init, UnderTorchrunWithItsAgentsStore) {
  // What torchrun's agent does: it hosts a c10d store, and its workers are clients of it.
  c10d::TCPStoreOptions options;
  options.isServer = true;
  options.port = 0;
  options.waitWorkers = false;
  c10d::TCPStore agent("127.0.0.1", options);
  std::vector<Variables> all;
  for (int rank = 0; rank < 2; ++rank) {
    all.push_back({{"RANK", std::to_string(rank)},
                   {"WORLD_SIZE", "2"},
                   {"MASTER_ADDR", "127.0.0.1"},
                   {"MASTER_PORT", std::to_string(agent.getPort())},
                   {"TORCHELASTIC_RUN_ID", "run"},
                   {"TORCHELASTIC_USE_AGENT_STORE", "True"}});
  }
  const auto outputs = run_children(all);
  expect_sums(outputs);
  EXPECT_THAT(outputs[0].err, HasSubstr("2 ranks from torchrun"));
}

TEST(Init, ContradictionsAndUnknownBackendsAreUsageErrors) {
  EXPECT_THAT(run_children({{{"RANK", "2"}, {"WORLD_SIZE", "2"}}})[0].out,
              HasSubstr("RANK=2 is not below"));
  EXPECT_THAT(run_children({{{"LOCKSTEP_BACKEND", "smoke"}}})[0].out,
              HasSubstr("it is auto, gloo, shm or hierarchical"));
}

}  // namespace
}  // namespace lockstep
