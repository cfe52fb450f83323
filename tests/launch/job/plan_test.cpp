#include "launch/plan.h"

#include <csignal>
#include <netinet/in.h>
#include <sys/socket.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

namespace lockstep {
namespace {

using ::testing::Contains;
using ::testing::Not;
using ::testing::StartsWith;

TEST(WorkerEnvironment, ReplacesWhatDescribesAPlaceAndKeepsTheRest) {
  const auto env =
      launch::worker_environment({.rank = 5,
                                  .world_size = 8,
                                  .local_rank = 1,
                                  .local_world_size = 4,
                                  .node = 1,
                                  .num_nodes = 2},
                                 {.id = "job",
                                  .secret = "s3cret",
                                  .role = "trainer",
                                  .max_restarts = 3,
                                  .stop_signals = {SIGTERM, SIGUSR2},
                                  .place = {.generation = 4,
                                            .restart_count = 2,
                                            .store = "127.0.0.1:7",
                                            .master_addr = "10.0.0.1",
                                            .master_port = 9}},
                                 {"RANK=1", "LOCKSTEP_STORE=x:1", "TORCHELASTIC_ERROR_FILE=/x",
                                  "EDITOR=vi", "A=b=c", "EMPTY=", "PET_NNODES=2"});
  for (const char* entry :
       {"RANK=5", "LOCAL_RANK=1", "LOCKSTEP_STORE=127.0.0.1:7", "MASTER_PORT=9",
        "LOCKSTEP_NODE_ID=job-n1", "EDITOR=vi", "A=b=c", "EMPTY=", "MASTER_ADDR=10.0.0.1",
        "ROLE_NAME=trainer", "LOCKSTEP_GENERATION=4", "TORCHELASTIC_RESTART_COUNT=2",
        "TORCHELASTIC_MAX_RESTARTS=3", "TORCHELASTIC_SIGNALS_TO_HANDLE=SIGTERM,SIGUSR2"}) {
    EXPECT_THAT(env, Contains(entry));
  }
  EXPECT_THAT(env, Not(Contains(StartsWith("TORCHELASTIC_ERROR_FILE="))));
  EXPECT_THAT(env, Not(Contains("RANK=1")));
  EXPECT_THAT(env, Not(Contains(StartsWith("PET_"))));
}

TEST(WorkerEnvironment, TuningIsTheUsers) {
  const launch::RankPlace place{.num_cores = 16, .ranks_on_host = 4};
  EXPECT_THAT(launch::worker_environment(place, {}, {}), Contains("OMP_NUM_THREADS=4"));
  EXPECT_THAT(launch::worker_environment(place, {}, {"OMP_NUM_THREADS=7"}),
              Contains("OMP_NUM_THREADS=7"));
  EXPECT_THAT(launch::worker_environment({.num_cores = 2, .ranks_on_host = 8}, {}, {}),
              Contains("OMP_NUM_THREADS=1"));
  EXPECT_THAT(launch::worker_environment(place, {}, {"TORCH_NCCL_ASYNC_ERROR_HANDLING=0"}),
              Contains("TORCH_NCCL_ASYNC_ERROR_HANDLING=0"));
}

TEST(PlanNodes, DealsRanksNodeByNode) {
  const auto nodes = launch::plan_nodes(
      {.procs_per_node = 3,
       .local_nodes = 2,
       .output = {.log_dir = "/logs"},
       .isolation = base::IsolationMode::Guardian,
       .command = {"x"}},
      {.id = "job",
       .place =
           {.generation = 2, .first_node = 1, .num_nodes = 3, .first_rank = 4, .world_size = 10}},
      {});
  ASSERT_EQ(nodes.size(), 2u);
  EXPECT_EQ(nodes[1].node, 2);
  EXPECT_EQ(nodes[1].workers[2].rank, 9);
  EXPECT_EQ(nodes[1].workers[2].local_rank, 2);
  EXPECT_EQ(nodes[1].workers[2].log_folder, "/logs/job/attempt_2/rank_9");
  EXPECT_THAT(nodes[1].workers[2].env, Contains("WORLD_SIZE=10"));
  EXPECT_THAT(nodes[1].workers[2].env,
              Contains("TORCHELASTIC_ERROR_FILE=/logs/job/attempt_2/rank_9/error.json"));
}

TEST(ParseIsolation, KnowsThreeWords) {
  EXPECT_EQ(base::parse_isolation("pidns"), base::IsolationMode::PidNamespace);
  EXPECT_EQ(base::parse_isolation("userns"), base::IsolationMode::UserNamespace);
  EXPECT_EQ(base::parse_isolation("guardian"), base::IsolationMode::Guardian);
  EXPECT_EQ(base::parse_isolation("auto"), base::IsolationMode::Auto);
  EXPECT_THROW(base::parse_isolation("docker"), UsageError);
}

// As c10d's store does: on all addresses, IPv6 and IPv4 at once.
TEST(ReservePort, AnotherSocketCanListenOnIt) {
  const launch::ReservedPort reserved = launch::reserve_port();
  const base::UniqueFd store(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!store) {
    GTEST_SKIP() << "no IPv6 here";
  }
  const int yes = 1, no = 0;
  ::setsockopt(store.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  ::setsockopt(store.get(), IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no);
  sockaddr_in6 any{};
  any.sin6_family = AF_INET6;
  any.sin6_port = htons(reserved.port);
  EXPECT_EQ(::bind(store.get(), reinterpret_cast<sockaddr*>(&any), sizeof any), 0);
  EXPECT_EQ(::listen(store.get(), 8), 0);
}

TEST(ReservePort, TwoJobsGetTwoPorts) {
  std::vector<launch::ReservedPort> ports;
  for (int i = 0; i < 100; ++i) {
    ports.push_back(launch::reserve_port());
    for (int j = 0; j < i; ++j) {
      ASSERT_NE(ports[static_cast<size_t>(j)].port, ports.back().port);
    }
  }
}

TEST(RunJob, RefusesOptionsOutOfRange) {
  EXPECT_THROW(launch::run_job({}), UsageError);
  EXPECT_THROW(launch::run_job({.procs_per_node = 0, .command = {"true"}}), UsageError);
  EXPECT_THROW(launch::run_job({.local_nodes = launch::kMaxLocalNodes + 1, .command = {"true"}}),
               UsageError);
  EXPECT_THROW(launch::run_job({.stop_grace = std::chrono::seconds(-1), .command = {"true"}}),
               UsageError);
}

}  // namespace
}  // namespace lockstep
