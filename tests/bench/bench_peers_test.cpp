// `lockstep bench allreduce --peer` beside MPIs: real ones where they are, and ones that answer as
// the test wants.

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/process/process.h"
#include "base/secret.h"
#include "support/paths.h"
#include "support/service.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::HasSubstr;
using Text = std::vector<std::string>;

constexpr auto kPatience = std::chrono::seconds(100);  // only failures take it

// In place of an mpiexec and its ranks (bench/mpi_peer.c): the ranks come 10 us after each other,
// and an operation takes as long as the file `us` beside it says.
constexpr const char* kMpiexec = R"python(#!/usr/bin/env python3
import os, socket, struct, sys
home = os.path.dirname(sys.argv[-2])
us = int(open(home + "/us").read())
mode = open(home + "/mode").read()
ranks = int(sys.argv[sys.argv.index("-n") + 1])
rank = 0
while rank < ranks - 1 and os.fork() == 0:
    rank += 1
control = socket.socket(socket.AF_UNIX)
control.connect("\0" + sys.argv[-1][1:])
control.sendall(struct.pack("2q", rank, ranks))
while True:
    request = control.recv(48, socket.MSG_WAITALL)
    size, _, batch, *_ = struct.unpack("6q", request) if request else [0] * 6
    if size == 0 or (mode == "dies" and rank == 1):
        break
    last = 10000 * (ranks - 1)
    ends = [last + 1000 * us * (i + 1) for i in range(batch)]
    stamps = [10000 * rank] + ends + [0] * (64 - batch)
    mistake = b"element 5 is 3, not 4" if mode == "wrong" and rank == 1 else b""
    control.sendall(struct.pack("65q160s", *stamps, mistake))
if rank < ranks - 1:
    os.wait()
)python";

class BenchPeers : public ::testing::Test {
 protected:
  void SetUp() override {
    home_ = fs::temp_directory_path() / ("lockstep-peers-" + base::make_job_id());
    fs::create_directories(home_);
  }

  void TearDown() override { fs::remove_all(home_); }

  void add_mpi(const std::string& name, const std::string& us, const std::string& mode) const {
    fs::create_directories(home_ / name);
    std::ofstream(home_ / name / "us") << us;
    std::ofstream(home_ / name / "mode") << mode;
    std::ofstream(home_ / name / "mpi_peer") << "its path is all that counts\n";
    std::ofstream(home_ / name / "mpiexec") << kMpiexec;
    fs::permissions(home_ / name / "mpiexec", fs::perms::owner_all);
    fs::permissions(home_ / name / "mpi_peer", fs::perms::owner_all);
  }

  base::Output bench(const std::string& peers, const std::string& bytes) const {
    return base::run_process(
        {.argv = {testing_support::in_build("lockstep"), "bench", "allreduce", "--ranks", "2",
                  "--repeats", "1", "--json", "--bytes", bytes, "--peer", peers},
         .env = {{"LOCKSTEP_MPI_HOME", home_.string()}}},
        base::Deadline::after(kPatience));
  }

  fs::path home_;
};

TEST_F(BenchPeers, AreMeasuredBesideEachOther) {
  add_mpi("mpich", "50", "right");
  add_mpi("openmpi", "40", "right");
  const base::Output output = bench("gloo,mpich,openmpi", "4K,100000");
  ASSERT_TRUE(output.status.ok()) << output.err;
  EXPECT_EQ(output.err, "");
  const json answer = json::parse(output.out);
  EXPECT_EQ(answer.at("peer"), "gloo");
  EXPECT_EQ(answer.at("missing"), json::object());
  for (const json& result : answer.at("results")) {
    EXPECT_EQ(result.at("peers").at("mpich"), 50);
    EXPECT_EQ(result.at("peers").at("openmpi"), 40);
    EXPECT_EQ(result.at("peers").at("gloo"), result.at("peer_us"));
    EXPECT_GE(result.at("peers_iterations").at("mpich"), 30);
    const double best = std::min(40.0, result.at("peer_us").get<double>());
    const double staged = best / result.at("staged_us").get<double>();
    EXPECT_NEAR(result.at("staged_speedup_over_best"), staged, 0.01 * staged + 0.001);
  }
  // A batch of one, and the first rank came 10 us before the last.
  const json& large = answer.at("results").at(1);
  EXPECT_EQ(large.at("batch"), 1);
  EXPECT_EQ(large.at("peers_from_first_us").at("mpich"), 60);
}

TEST_F(BenchPeers, AWrongResultEndsTheRun) {
  add_mpi("mpich", "50", "wrong");
  const base::Output output = bench("mpich", "4K");
  EXPECT_EQ(output.status.code, 1) << output.err;
  EXPECT_THAT(output.err, HasSubstr("a wrong result by mpich at 4096 bytes on rank 1: element 5"));
  EXPECT_EQ(output.out, "");
}

TEST_F(BenchPeers, ALostRankEndsTheRun) {
  add_mpi("mpich", "50", "dies");
  const base::Output output = bench("gloo,mpich", "4K");
  EXPECT_FALSE(output.status.ok());
  EXPECT_FALSE(output.timed_out);
  EXPECT_THAT(output.err, HasSubstr("mpich"));
}

// PATH has no MPI: what was named and is not here is said, and the run goes on with the others.
TEST_F(BenchPeers, TheMissingAreNamed) {
  add_mpi("mpich", "50", "right");
  fs::create_directories(home_ / "bin");
  for (const char* program : {"env", "python3"}) {
    const base::Output found =
        base::run_process({.argv = {"sh", "-c", std::string("command -v ") + program}},
                          base::Deadline::after(kPatience));
    std::ofstream(home_ / "bin" / program)
        << "#!/bin/sh\nPATH=" << std::getenv("PATH") << " exec "
        << found.out.substr(0, found.out.find('\n')) << " \"$@\"\n";
    fs::permissions(home_ / "bin" / program, fs::perms::owner_all);
  }
  base::ProcessOptions options{.argv = {testing_support::in_build("lockstep"), "bench", "allreduce",
                                        "--ranks", "2", "--repeats", "1", "--json", "--bytes", "4K",
                                        "--peer", "intelmpi,mpich", "--mpi-home", home_.string()},
                               .env = {{"PATH", (home_ / "bin").string()}, {"I_MPI_ROOT", ""}}};
  const base::Output output = base::run_process(options, base::Deadline::after(kPatience));
  ASSERT_TRUE(output.status.ok()) << output.err;
  EXPECT_THAT(output.err, HasSubstr("intelmpi is left out: no mpiexec of it is in PATH"));
  const json answer = json::parse(output.out);
  EXPECT_EQ(answer.at("peer"), "mpich");
  EXPECT_TRUE(answer.at("missing").contains("intelmpi"));
  EXPECT_EQ(answer.at("results").at(0).at("peers"), (json{{"mpich", 50}}));

  options.argv.erase(options.argv.end() - 3, options.argv.end());
  options.argv.emplace_back("intelmpi");
  const base::Output alone = base::run_process(options, base::Deadline::after(kPatience));
  EXPECT_EQ(alone.status.code, 2);
  EXPECT_THAT(alone.err, HasSubstr("no peer of --peer intelmpi is here (intelmpi: no mpiexec"));
}

std::optional<std::string> openmpi_refusal() {
  for (const char* path : {"/usr/bin/mpiexec.openmpi", "/usr/bin/mpicc.openmpi",
                           "/usr/lib/x86_64-linux-gnu/openmpi/include/mpi.h"}) {
    if (::access(path, R_OK) != 0) {
      return fmt::format("no {} here: apt-get install openmpi-bin libopenmpi-dev", path);
    }
  }
  return std::nullopt;
}

TEST_F(BenchPeers, TheRealOpenMpiIsCompiledForAndChecked) {
  LOCKSTEP_NEEDS("mpi", openmpi_refusal());
  const base::Output output = bench("gloo,openmpi", "4K,100001");
  ASSERT_TRUE(output.status.ok()) << output.err;
  for (const json& result : json::parse(output.out).at("results")) {
    EXPECT_GT(result.at("peers").at("openmpi"), 0.1);
    EXPECT_GE(result.at("peers_iterations").at("openmpi"), 30);
  }
}

}  // namespace
}  // namespace lockstep
