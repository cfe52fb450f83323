#pragma once

// What the ranks of `lockstep bench` measure. `lockstep` reads and checks the command line, once,
// and hands the ranks this.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "bench/plan.h"

namespace lockstep {

enum class BenchOperation { AllReduce, Broadcast, AllGather, ReduceScatter };

// The network of an emulated node, which its ranks join.
struct BenchNode {
  int pid = 0;          // a process in its namespace: /proc/<pid>/ns/net
  std::string address;  // of the ranks in it
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(BenchNode, pid, address)

// An MPI that is measured beside us: `command` starts its ranks, and takes the name of the socket
// to which they report as its last argument.
struct BenchMpi {
  std::string name;  // "openmpi", "mpich" or "intelmpi"
  std::vector<std::string> command;
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(BenchMpi, name, command)

struct BenchPlan {
  std::string operation = "allreduce";  // or broadcast, allgather, reducescatter
  // Sizes as nccl-tests counts them: of the larger of input and output.
  std::vector<int64_t> bytes = {4 << 10, 1 << 20, 25 << 20};
  std::string dtype = "float32";  // or float64, float16, bfloat16
  std::string wire = "full";      // or bfloat16, float16: between nodes
  std::string rate;               // of the network between nodes; empty: not limited
  int repeats = 3;
  int nodes = 1;
  std::vector<std::string> peers;  // who is measured beside us, in the order in which it is told
  std::vector<BenchMpi> mpi;       // those of them that are MPIs
  std::map<std::string, std::string> missing;  // peers that were asked for: why they are not here
  bool json = false;                           // print one JSON object and nothing else
  bool bars = false;                           // the table is for a terminal
  std::vector<BenchNode> network;              // one per node; empty: they share the host's
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(BenchPlan, operation, bytes, dtype, wire, rate, repeats, nodes,
                                   peers, mpi, missing, json, bars, network)

// Throws UsageError for a name that is none of the four.
BenchOperation bench_operation(const std::string& name);

}  // namespace lockstep
