#pragma once

// Finds the MPIs of this machine that `lockstep bench allreduce` can measure. lockstep itself
// links none: each is a program of its own (bench/mpi_peer.c), started by its own mpiexec.

#include <map>
#include <string>
#include <vector>

#include "bench/allreduce/bench_plan.h"

namespace lockstep::app {

struct MpiSearch {
  std::vector<BenchMpi> found;
  std::map<std::string, std::string> missing;  // by name: why it cannot be measured
};

struct MpiSearchOptions {
  std::vector<std::string> names;  // REQUIRED: which ones
  std::string home;                // of bench/mpi_pack.py; empty: only PATH and I_MPI_ROOT
  int num_ranks = 0;               // REQUIRED
  int num_cores = 0;               // REQUIRED: ranks are bound to cores if there is one for each
};

// Finds them, and compiles the peer by its mpicc for those that bring none. The programs are gone
// with this object.
class MpiPrograms {
 public:
  // Throws UsageError if `home` is no folder, IoError if the system refuses a temporary file.
  explicit MpiPrograms(const MpiSearchOptions& options);
  ~MpiPrograms();
  MpiPrograms(const MpiPrograms&) = delete;
  MpiPrograms& operator=(const MpiPrograms&) = delete;

  const MpiSearch& search() const { return search_; }

 private:
  void find(const std::string& name, const MpiSearchOptions& options);
  std::string compile(const std::string& name, const std::string& mpiexec);

  MpiSearch search_;
  std::string folder_;  // of the compiled ones; empty: there are none
};

// The arguments and variables by which mpiexec starts ranks on this host alone, bound to cores
// where each has one, talking through shared memory. Tests call them too.
std::vector<std::string> mpi_arguments(const std::string& name, int num_ranks, bool is_bound);
std::map<std::string, std::string> mpi_variables(const std::string& name, bool is_bound);

// Tells whether that is what `mpiexec --version` of the named MPI prints. Tests call it too.
bool is_version_of(const std::string& name, const std::string& version);

}  // namespace lockstep::app
