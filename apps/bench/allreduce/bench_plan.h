#pragma once

// What the ranks of `lockstep bench` measure. `lockstep` reads and checks the command line, once,
// and hands the ranks this.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace lockstep {

enum class BenchOperation { AllReduce, Broadcast, AllGather, ReduceScatter };

// The network of an emulated node, which its ranks join.
struct BenchNode {
  int pid = 0;          // of a process in its namespace
  std::string address;  // of the ranks in it
};

// An MPI that is measured beside us: `command` starts its ranks, and takes the name of the socket
// to which they report as its last argument.
struct BenchMpi {
  std::string name;  // "openmpi", "mpich" or "intelmpi"
  std::vector<std::string> command;
};

struct BenchPlan {
  BenchOperation operation = BenchOperation::AllReduce;
  std::string operation_name;        // as it was typed: "allreduce"
  std::vector<int64_t> sizes_bytes;  // as nccl-tests counts: of the larger of input and output
  std::string dtype = "float32";     // or float64, float16, bfloat16
  std::string wire = "full";         // or bfloat16, float16: between nodes
  std::string rate;                  // of the network between nodes; empty: not limited
  int repeats = 3;
  int num_nodes = 1;
  std::vector<std::string> peers;  // who is measured beside us, in the order in which it is told
  std::vector<BenchMpi> mpi;       // those of them that are MPIs
  std::map<std::string, std::string> missing;  // peers that were asked for: why they are not here
  bool json = false;                           // print one JSON object and nothing else
  bool bars = false;                           // the table is for a terminal
  std::vector<BenchNode> network;              // one per node; empty: they share the host's
};

// Throws UsageError if `text` is not what `lockstep bench` writes.
BenchPlan read_bench_plan(const std::string& text);

}  // namespace lockstep
