#pragma once

// What `lockstep bench launch` measures, and how.

#include <string>
#include <vector>

namespace lockstep::app {

struct LaunchBench {
  int num_ranks = 8;     // at least 2: one dies, another is told to stop
  int repeats = 5;       // rounds that count; one before them warms the file cache
  std::string torchrun;  // the peer's program; empty: no peer
};

// One value per repeat, in order; those of a peer that is not there are empty.
struct LaunchFigures {
  std::vector<double> lockstep_s;          // the C++ job under `lockstep run`, command to exit
  std::vector<double> peer_s;              // the same job in Python under torchrun
  std::vector<double> peer_same_binary_s;  // the C++ job under torchrun
  std::vector<double> print_only_ms;       // `lockstep run` of ranks that print a line
  std::vector<double> death_to_stop_ms;    // a rank's kill -9 until the last other one has SIGTERM
  std::vector<double> restart_ms;          // the same death until the last new rank runs
};

// Each round measures everything once, one after the other. Throws IoError if a job fails or its
// output is not what it should be, UsageError if lockstep-torch is missing.
LaunchFigures measure_launch(const LaunchBench& bench);

struct FaultTimes {
  double death_to_stop_ms = 0;
  double restart_ms = 0;
};

// Kills a rank of a job of its own that may be restarted once.
FaultTimes measure_fault(int num_ranks);

// One rank of that job: the first time it waits for SIGTERM, the second time it only says that it
// is there. Returns the exit code.
int launch_fault_rank();

}  // namespace lockstep::app
