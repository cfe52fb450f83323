// `lockstep bench` as a user runs it.

#include <cstdlib>
#include <filesystem>
#include <set>
#include <signal.h>
#include <thread>
#include <unistd.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/process/process.h"
#include "support/paths.h"
#include "support/service.h"

namespace lockstep {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using Text = std::vector<std::string>;

constexpr auto kPatience = std::chrono::seconds(100);  // only failures take it

base::ProcessOptions bench_options(Text arguments) {
  base::ProcessOptions options{.argv = {testing_support::in_build("lockstep"), "bench"}};
  options.argv.insert(options.argv.end(), arguments.begin(), arguments.end());
  return options;
}

base::Output bench(Text arguments) {
  return base::run_process(bench_options(std::move(arguments)), base::Deadline::after(kPatience));
}

json bench_json(Text arguments) {
  arguments.emplace_back("--json");
  const base::Output output = bench(std::move(arguments));
  EXPECT_TRUE(output.status.ok()) << output.status.text() << "\n" << output.err;
  EXPECT_EQ(output.err, "");
  return json::parse(output.out);
}

void expect_sane(const json& result, int64_t bytes) {
  EXPECT_EQ(result.at("bytes"), bytes);
  for (const char* name :
       {"lockstep_us", "lockstep_p90_us", "lockstep_p99_us", "lockstep_from_first_us", "staged_us",
        "staged_p90_us", "staged_from_first_us", "peer_us", "peer_from_first_us", "speedup",
        "staged_speedup", "staged_from_first_speedup", "speedup_over_best",
        "staged_speedup_over_best", "busbw_gb_per_s", "memory_pass_us", "memory_passes"}) {
    EXPECT_GT(result.at(name).get<double>(), 0) << name;
  }
  EXPECT_LE(result.at("lockstep_p90_us"), result.at("lockstep_p99_us"));
  const double peer_us = result.at("peer_us");
  const double lockstep_us = result.at("lockstep_us");
  EXPECT_NEAR(result.at("speedup"), peer_us / lockstep_us, 0.01 * peer_us / lockstep_us);
  const size_t iterations = result.at("iterations");
  const size_t peer_iterations = result.at("peer_iterations");
  EXPECT_GE(iterations, 30u);
  EXPECT_GE(peer_iterations, 30u);
  const json& raw = result.at("raw_us");
  EXPECT_EQ(raw.at("lockstep").size() * result.at("batch").get<size_t>(), iterations);
  EXPECT_EQ(raw.at("staged").size(), raw.at("lockstep").size());
  ASSERT_EQ(raw.at("staged_from_first").size(), raw.at("staged").size());
  for (size_t i = 0; i < raw["staged"].size(); ++i) {  // the first rank comes before the last
    EXPECT_GE(raw["staged_from_first"][i], raw["staged"][i]);
  }
  EXPECT_EQ(raw.at("peer").size() * result.at("peer_batch").get<size_t>(), peer_iterations);
}

TEST(Bench, JsonHoldsEveryFigure) {
  const json answer =
      bench_json({"allreduce", "--ranks", "2", "--bytes", "4K,65536", "--repeats", "1"});
  EXPECT_EQ(answer.at("ranks"), 2);
  EXPECT_EQ(answer.at("backend"), "shm");
  EXPECT_EQ(answer.at("bound"), ::sysconf(_SC_NPROCESSORS_ONLN) > 1);
  if (::sysconf(_SC_NPROCESSORS_ONLN) > 1) {
    EXPECT_GT(answer.at("core_roundtrip_ns"), 10);
    EXPECT_LT(answer.at("core_roundtrip_ns"), 1e6);
  }
  ASSERT_EQ(answer.at("results").size(), 2u);
  expect_sane(answer["results"][0], 4096);
  expect_sane(answer["results"][1], 65536);
}

// An odd number of ranks and sizes that they cannot share equally: results are checked inside.
TEST(Bench, MeasuresEveryOperationAndType) {
  const std::pair<const char*, const char*> cases[] = {{"broadcast", "float64"},
                                                       {"allgather", "bfloat16"},
                                                       {"reducescatter", "float16"},
                                                       {"allreduce", "bfloat16"}};
  for (const auto& [operation, type] : cases) {
    const json answer = bench_json(
        {operation, "--ranks", "3", "--bytes", "5000", "--dtype", type, "--repeats", "1"});
    EXPECT_EQ(answer.at("operation"), operation);
    EXPECT_EQ(answer.at("dtype"), type);
    expect_sane(answer.at("results").at(0), 5000);
  }
}

TEST(Bench, TableHasARowPerSize) {
  const base::Output output =
      bench({"allreduce", "--ranks=2", "--bytes=4K,128K", "--repeats=1", "--peer=none"});
  EXPECT_TRUE(output.status.ok()) << output.err;
  EXPECT_THAT(output.out, HasSubstr("\n    4 KiB "));
  EXPECT_THAT(output.out, HasSubstr("\n  128 KiB "));
  EXPECT_EQ(output.out.find("gloo"), std::string::npos);
}

TEST(Bench, AMistakeIsOneSentence) {
  const std::pair<Text, const char*> cases[] = {
      {{"allreduce", "--ranks", "8", "--bytes", "4K,x,1M"}, "--bytes: \"x\" is not a size from"},
      {{"allreduce", "--bytes", "4Q"}, "--bytes: \"4Q\" is not a size"},
      {{"allreduce", "--bytes", "0"}, "--bytes: \"0\" is not a size"},
      {{"allreduce", "--bytes", "99G"}, "--bytes: \"99G\" is not a size from 1 to 8G; write 4096,"},
      {{"allreduce", "--bytes", "2"}, "--bytes 2 is too little"},
      {{"allgather", "--ranks", "3", "--bytes", "8"}, "3 ranks needs 12 or more"},
      {{"allreduce", "--ranks", "1"}, "--ranks: Value 1 not in range 2 to 64"},
      {{"allreduce", "--ranks", "5", "--local-nodes", "2"}, "cannot be dealt equally"},
      {{"allreduce", "--dtype", "int7"}, "--dtype: int7 not in {float32,"},
      {{"allreduce", "--wire", "int8"}, "--wire: int8 not in {full,"},
      {{"allreduce", "--peer", "nccl"}, "--peer: nccl not in {gloo,"},
      {{"allreduce", "--peer", "gloo,none"}, "--peer gloo,none: none stands alone"},
      {{"allreduce", "--peer", "gloo,openmpi,gloo"}, "names gloo twice"},
      {{"broadcast", "--peer", "openmpi"}, "an MPI is measured beside allreduce only"},
      {{"allreduce", "--peer", "mpich", "--dtype", "bfloat16"}, "MPI does not sum bfloat16"},
      {{"allreduce", "--peer", "mpich", "--local-nodes", "2"}, "--local-nodes is 2"},
      {{"allreduce", "--peer", "mpich", "--bytes", "8G"}, "MPI_Allreduce takes at most 8589934588"},
      {{"allreduce", "--peer", "mpich", "--mpi-home", "/nowhere"}, "folder of MPIs, /nowhere"},
      {{"allreduce", "--repeats", "0"}, "--repeats: Value 0 not in range 1 to 1000"},
      {{"allreduce", "--rate", "1gbit"}, "give --local-nodes 2"},
      {{"allreduce", "--local-nodes", "2", "--rate", "fast"}, "--rate fast is not a rate"},
      {{"allreduce", "--byte", "4K"}, "did you mean --bytes?"},
      {{"allreduce", "4K"}, "no place for \"4K\""},
      {{"alltoall"}, "operation alltoall is not known"},
      {{"--ranks", "2"}, "say first what to measure"},
  };
  for (const auto& [arguments, sentence] : cases) {
    const base::Output output = bench(arguments);
    EXPECT_EQ(output.status.code, 2) << sentence;
    EXPECT_THAT(output.err, HasSubstr(sentence));
    EXPECT_EQ(std::count(output.err.begin(), output.err.end(), '\n'), 1) << output.err;
    EXPECT_EQ(output.out, "");
  }
}

// Every network namespace that a process of this machine is in.
std::set<std::string> networks() {
  std::set<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::error_code error;
    const auto link = std::filesystem::read_symlink(entry.path() / "ns/net", error);
    if (!error) {
      found.insert(link.string());
    }
  }
  return found;
}

std::set<std::string> interfaces() {
  std::set<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator("/sys/class/net")) {
    found.insert(entry.path().filename().string());
  }
  return found;
}

class BenchNetworks : public ::testing::Test {
 protected:
  void SetUp() override {
    LOCKSTEP_NEEDS("namespaces", ::geteuid() == 0
                                     ? std::nullopt
                                     : std::optional<std::string>("network namespaces need root"));
  }

  // Other tests may come and go: only namespaces that were not there before count, and they get a
  // moment to end.
  bool nothing_new() const {
    const base::Deadline deadline = base::Deadline::after(std::chrono::seconds(20));
    while (!deadline.expired()) {
      const auto now = networks();
      if (std::includes(networks_.begin(), networks_.end(), now.begin(), now.end()) &&
          interfaces() == interfaces_) {
        return true;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    return false;
  }

  const std::set<std::string> networks_ = networks();
  const std::set<std::string> interfaces_ = interfaces();
};

TEST_F(BenchNetworks, TheRateLimitsBothAndNothingIsLeft) {
  const json answer = bench_json({"allreduce", "--ranks", "4", "--local-nodes", "2", "--rate",
                                  "100mbit", "--bytes", "256K", "--repeats", "1"});
  EXPECT_EQ(answer.at("backend"), "hierarchical");
  EXPECT_EQ(answer.at("nodes"), 2);
  const json& result = answer.at("results").at(0);
  expect_sane(result, 262144);
  // 2 (H - 1) / H of the bytes leave each node: at 12.5 MB/s they take 21 ms.
  EXPECT_NEAR(result.at("network_bytes_per_node"), 262144, 4096);
  EXPECT_GT(result.at("lockstep_us"), 10000);
  EXPECT_GT(result.at("peer_us"), result.at("lockstep_us").get<double>() / 2);
  EXPECT_TRUE(nothing_new());
}

TEST_F(BenchNetworks, NothingIsLeftOfAKilledRun) {
  base::ProcessOptions options = bench_options({"allreduce", "--ranks", "2", "--local-nodes", "2",
                                                "--rate", "1mbit", "--bytes", "1M", "--json"});
  base::Process process(options);
  const size_t before = networks_.size();
  const base::Deadline deadline = base::Deadline::after(kPatience);
  while (networks().size() < before + 3 && !deadline.expired()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_GE(networks().size(), before + 3) << "the bridge's and two nodes'";
  process.kill(SIGKILL);
  process.wait(deadline);
  EXPECT_TRUE(nothing_new());
}

}  // namespace
}  // namespace lockstep
