// A lockstep program under the real mpirun: Open MPI starts the ranks and init() makes the group,
// on one machine and on two.

#include <fcntl.h>
#include <filesystem>
#include <map>
#include <unistd.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/process/process.h"
#include "base/secret.h"
#include "support/nodes.h"
#include "support/paths.h"
#include "support/service.h"

namespace lockstep::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr auto kPatience = std::chrono::seconds(100);
const std::string kProgram = testing_support::in_build("00_first_light");
constexpr const char* kMpirun = "/usr/bin/mpirun";

std::optional<std::string> mpi_refusal() {
  if (::access(kMpirun, X_OK) != 0) {
    return fmt::format("no {} here: apt-get install openmpi-bin", kMpirun);
  }
  return std::nullopt;
}

std::vector<std::string> mpirun(const std::vector<std::string>& arguments) {
  std::vector<std::string> argv{kMpirun, "--allow-run-as-root", "--oversubscribe"};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  argv.emplace_back(kProgram);
  return argv;
}

void expect_every_rank(const base::Output& output) {
  EXPECT_TRUE(output.status.ok()) << output.err;
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_THAT(output.out, HasSubstr(fmt::format("rank {}: loss ", rank))) << output.err;
  }
}

TEST(Mpirun, OnOneHostFormsAGroup) {
  LOCKSTEP_NEEDS("mpi", mpi_refusal());
  const base::Output output =
      base::run_process({.argv = mpirun({"-n", "4"})}, base::Deadline::after(kPatience));
  expect_every_rank(output);
  EXPECT_THAT(output.err, AllOf(HasSubstr("4 ranks from mpirun"), HasSubstr("backend shm")));
}

// Two machines of two ranks. mpirun reaches the second one by a program in ssh's place.
class MpirunOnTwoHosts : public ::testing::Test {
 protected:
  void SetUp() override {
    LOCKSTEP_NEEDS("mpi", mpi_refusal());
    LOCKSTEP_NEEDS("namespaces", nodes_refusal());
    nodes_.emplace(2);
    agent_ =
        (std::filesystem::temp_directory_path() / ("lockstep-mpi-" + base::make_job_id())).string();
    const base::ProcessOptions shell = nodes_->inside(1, {.argv = {"sh", "-c", "\"$*\""}});
    const std::string text = fmt::format("#!/bin/sh\nshift\nexec {}\n", fmt::join(shell.argv, " "));
    const base::UniqueFd file = base::open_file(agent_, O_WRONLY | O_CREAT | O_EXCL, 0700);
    base::write_all(file.get(), text.data(), text.size());
  }

  void TearDown() override { ::unlink(agent_.c_str()); }

  // mpirun passes on the variables that -x names.
  base::Output run(const std::map<std::string, std::string>& env) const {
    std::vector<std::string> arguments{
        "-n", "4", "--host", "node0:2,node1:2", "--mca", "plm_rsh_agent", agent_};
    for (const auto& [name, value] : env) {
      arguments.insert(arguments.end(), {"-x", name});
    }
    return base::run_process(nodes_->inside(0, {.argv = mpirun(arguments), .env = env}),
                             base::Deadline::after(kPatience));
  }

  std::optional<TestNodes> nodes_;
  std::string agent_;
};

TEST_F(MpirunOnTwoHosts, FormsAGroupAtTheMastersAddress) {
  const base::Output output = run({{"MASTER_ADDR", nodes_->address(0)},
                                   {"MASTER_PORT", "29500"},
                                   {"LOCKSTEP_JOB_SECRET", base::make_secret()}});
  expect_every_rank(output);
  EXPECT_THAT(output.err, HasSubstr("4 ranks from mpirun; backend hierarchical"));
}

TEST_F(MpirunOnTwoHosts, SaysWhatIsMissingWithoutOne) {
  const base::Output output = run({});
  EXPECT_FALSE(output.status.ok());
  EXPECT_THAT(output.err, HasSubstr("init: started by mpirun with several ranks, but MASTER_ADDR"));
}

}  // namespace
}  // namespace lockstep::test
