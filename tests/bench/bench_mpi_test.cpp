// Which MPIs `lockstep bench allreduce` finds, and how it starts them.

#include "bench/allreduce/bench_mpi.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "base/secret.h"

namespace lockstep::app {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::Not;

constexpr const char* kOpenMpi = "mpiexec (OpenRTE) 4.1.4\n\nReport bugs to ...\n";
constexpr const char* kMpich = "HYDRA build details:\n    Version: 4.0.2\n";
constexpr const char* kIntel =
    "Intel(R) MPI Library for Linux* OS, Version 2021.19 Build 20260925 (HYDRA)\n";

TEST(MpiVersion, TellsThemApart) {
  const std::pair<const char*, const char*> versions[] = {
      {"openmpi", kOpenMpi}, {"mpich", kMpich}, {"intelmpi", kIntel}};
  for (const auto& [name, version] : versions) {
    for (const auto& [other, text] : versions) {
      EXPECT_EQ(is_version_of(name, text), name == other) << name << " " << text;
    }
    EXPECT_FALSE(is_version_of(name, "")) << name;
  }
  EXPECT_TRUE(is_version_of("openmpi", "mpirun (Open MPI) 5.0.5\n"));
}

TEST(MpiArguments, BindRanksThatHaveACoreEach) {
  EXPECT_THAT(mpi_arguments("openmpi", 4, true), Contains("core:overload-allowed"));
  EXPECT_THAT(mpi_arguments("openmpi", 4, false), Contains("none"));
  EXPECT_THAT(mpi_arguments("mpich", 4, true), Contains("-bind-to"));
  EXPECT_THAT(mpi_arguments("mpich", 4, false), Not(Contains("-bind-to")));
  EXPECT_EQ(mpi_variables("intelmpi", true).at("I_MPI_PIN"), "1");
  EXPECT_EQ(mpi_variables("intelmpi", false).count("I_MPI_PIN"), 0u);
  EXPECT_EQ(mpi_variables("intelmpi", false).at("I_MPI_FABRICS"), "shm");
}

// A PATH of its own, in which MPIs are scripts that say what is needed of them.
class MpiSearchTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("lockstep-bench-mpi-" + base::make_job_id());
    fs::create_directories(folder_ / "bin");
    path_ = std::getenv("PATH");
    ::setenv("PATH", (folder_ / "bin").c_str(), 1);
    ::unsetenv("I_MPI_ROOT");
  }

  void TearDown() override {
    ::setenv("PATH", path_.c_str(), 1);
    ::unsetenv("I_MPI_ROOT");
    fs::remove_all(folder_);
  }

  void add_script(const fs::path& name, const std::string& text) const {
    fs::create_directories((folder_ / name).parent_path());
    std::ofstream(folder_ / name) << "#!/bin/sh\n" << text;
    fs::permissions(folder_ / name, fs::perms::owner_all);
  }

  void add_mpiexec(const fs::path& name, const std::string& version) const {
    add_script(name, "/bin/cat <<'END'\n" + version + "END\n");
  }

  // In place of a compiler: its "program" is what it was called with.
  void add_mpicc(const fs::path& name) const {
    add_script(name,
               "for last; do :; done\n/bin/echo \"$0 $I_MPI_ROOT\" > \"$last\"\n"
               "/bin/chmod +x \"$last\"\n");
  }

  MpiSearchOptions options(std::vector<std::string> names) const {
    return {.names = std::move(names), .num_ranks = 2, .num_cores = 2};
  }

  fs::path folder_;
  std::string path_;
};

TEST_F(MpiSearchTest, WhatIsNotHereIsMissingWithAReason) {
  const MpiPrograms programs(options({"openmpi", "intelmpi"}));
  EXPECT_TRUE(programs.search().found.empty());
  EXPECT_THAT(programs.search().missing.at("openmpi"),
              HasSubstr("apt-get install openmpi-bin libopenmpi-dev"));
  EXPECT_THAT(programs.search().missing.at("intelmpi"), HasSubstr("pip install impi-rt"));
}

TEST_F(MpiSearchTest, TakesTheMpiexecThatIsWhatItIsCalled) {
  add_mpiexec("bin/mpiexec", kMpich);
  add_mpicc("bin/mpicc");
  add_mpiexec("bin/mpiexec.openmpi", kOpenMpi);
  add_mpicc("bin/mpicc.openmpi");
  std::string program;
  {
    const MpiPrograms programs(options({"openmpi", "mpich", "intelmpi"}));
    const MpiSearch& search = programs.search();
    ASSERT_EQ(search.found.size(), 2u);
    EXPECT_EQ(search.missing.size(), 1u);
    EXPECT_THAT(search.found[0].command, Contains((folder_ / "bin/mpiexec.openmpi").string()));
    EXPECT_THAT(search.found[1].command, Contains((folder_ / "bin/mpiexec").string()));
    program = search.found[0].command.back();
    std::ifstream file(program);
    std::string compiler;
    file >> compiler;
    EXPECT_EQ(compiler, (folder_ / "bin/mpicc.openmpi").string());
  }
  EXPECT_FALSE(fs::exists(fs::path(program).parent_path())) << "programs are left behind";
}

TEST_F(MpiSearchTest, ACompilerThatFailsIsAReason) {
  add_mpiexec("bin/mpiexec", kOpenMpi);
  const MpiPrograms without(options({"openmpi"}));
  EXPECT_THAT(without.search().missing.at("openmpi"), HasSubstr("has no mpicc beside it"));
  add_script("bin/mpicc", "echo 'mpi.h: No such file' >&2\nexit 1\n");
  const MpiPrograms programs(options({"openmpi"}));
  EXPECT_TRUE(programs.search().found.empty());
  EXPECT_THAT(programs.search().missing.at("openmpi"), HasSubstr("(mpi.h: No such file)"));
}

TEST_F(MpiSearchTest, FindsIntelMpiByItsRoot) {
  add_mpiexec("impi/bin/mpiexec.hydra", kIntel);
  add_mpicc("impi/bin/mpicc");
  const std::string root = (folder_ / "impi").string();
  ::setenv("I_MPI_ROOT", root.c_str(), 1);
  const MpiPrograms programs(options({"intelmpi"}));
  ASSERT_EQ(programs.search().found.size(), 1u);
  EXPECT_THAT(programs.search().found[0].command,
              IsSupersetOf({"I_MPI_ROOT=" + root, "LD_LIBRARY_PATH=" + root + "/lib",
                            std::string("I_MPI_FABRICS=shm")}));
}

TEST_F(MpiSearchTest, APackedOneIsTakenAsItIs) {
  add_script("home/mpich/mpiexec", "exit 0\n");
  add_script("home/mpich/mpi_peer", "exit 0\n");
  MpiSearchOptions packed = options({"mpich", "openmpi"});
  packed.home = (folder_ / "home").string();
  const MpiPrograms programs(packed);
  ASSERT_EQ(programs.search().found.size(), 1u);
  EXPECT_EQ(programs.search().found[0].command.back(), packed.home + "/mpich/mpi_peer");
  EXPECT_TRUE(programs.search().missing.contains("openmpi"));
  packed.home += "/nowhere";
  EXPECT_THROW(MpiPrograms{packed}, UsageError);
}

// An mpiexec would take the variables of our job, or of a batch system's, for its own.
TEST_F(MpiSearchTest, HandsOnTuningAndNothingOfTheJob) {
  add_script("home/mpich/mpiexec", "exit 0\n");
  add_script("home/mpich/mpi_peer", "exit 0\n");
  ::setenv("SLURM_JOB_ID", "7", 1);
  ::setenv("MPIR_CVAR_ENABLE_GPU", "0", 1);
  MpiSearchOptions packed = options({"mpich"});
  packed.home = (folder_ / "home").string();
  const MpiPrograms programs(packed);
  ::unsetenv("SLURM_JOB_ID");
  ::unsetenv("MPIR_CVAR_ENABLE_GPU");
  ASSERT_EQ(programs.search().found.size(), 1u);
  const std::vector<std::string>& command = programs.search().found[0].command;
  EXPECT_EQ(command[0], "env");
  EXPECT_EQ(command[1], "-i");
  EXPECT_THAT(command, Contains("MPIR_CVAR_ENABLE_GPU=0"));
  EXPECT_THAT(command, Not(Contains("SLURM_JOB_ID=7")));
}

}  // namespace
}  // namespace lockstep::app
