#include "bench/allreduce/bench_command.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <fcntl.h>
#include <sched.h>
#include <string_view>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "base/unique_fd.h"
#include "bench/allreduce/bench_measure.h"
#include "bench/allreduce/bench_plan.h"
#include "bench/allreduce/bench_probe.h"
#include "bench/allreduce/bench_rank.h"
#include "bench/allreduce/bench_result.h"
#include "bench/checkpoint/bench_checkpoint_command.h"
#include "bench/data/bench_data_command.h"
#include "bench/ddp/bench_ddp_command.h"
#include "bench/gpu/kernels_command.h"
#include "bench/gpu/parity_command.h"
#include "bench/launch/bench_launch_job.h"
#include "bench/load/bench_load_command.h"
#include "comm/backends/raw_gloo.h"

namespace lockstep {
namespace {

at::ScalarType parse_dtype(const std::string& name) {
  return name == "float64"    ? at::kDouble
         : name == "float16"  ? at::kHalf
         : name == "bfloat16" ? at::kBFloat16
                              : at::kFloat;
}

WireType parse_wire(const std::string& name) {
  return name == "bfloat16"  ? WireType::BFloat16
         : name == "float16" ? WireType::Float16
                             : WireType::Full;
}

// Moves this process into its node's network; returns its address there. The connection to the
// store, which is older, stays in the network in which `lockstep bench` itself lives.
std::string join_network(const BenchPlan& plan, const comm::LaunchEnv& launch) {
  if (plan.network.empty()) {
    return "127.0.0.1";
  }
  const int number = launch.rank * plan.nodes / launch.size;
  const BenchNode& node = plan.network.at(static_cast<size_t>(number));
  const base::UniqueFd network =
      base::open_file(fmt::format("/proc/{}/ns/net", node.pid), O_RDONLY);
  if (::setns(network.get(), CLONE_NEWNET) != 0) {
    throw IoError("cannot enter the network of node {}: {}", number, base::errno_text(errno));
  }
  ::setenv("LOCKSTEP_INTERFACE", node.address.c_str(), 1);
  return node.address;
}

void measure(const BenchPlan& plan, Group& group, const BenchPeers& peers) {
  // Only this thread is bound, and only now: the peers' threads and processes have been started
  // before.
  const BenchPlace place{.num_ranks = group.size(),
                         .backend = group.backend_name(),
                         .is_bound = take_own_core(group.rank(), group.size())};
  const bool tells = group.rank() == 0;
  if (tells && !plan.json) {
    print_now(bench_header(plan, place));
  }
  std::vector<BenchResult> results;
  for (const int64_t bytes : plan.bytes) {
    results.push_back(measure_size(group, peers,
                                   {.operation = bench_operation(plan.operation),
                                    .type = parse_dtype(plan.dtype),
                                    .bytes = bytes,
                                    .repeats = plan.repeats,
                                    .num_nodes = plan.nodes}));
    if (tells && !plan.json) {
      print_now(bench_row(plan, place, results.back()));
    }
  }
  if (tells && plan.json) {
    print_now(bench_json(plan, place, results));
  }
}

}  // namespace

int bench_command(int argc, char** argv) {
  if (argc == 3 && std::string_view(argv[1]) == "gpu") {
    return kernels_command(argv[2]);
  }
  if (argc == 3 && std::string_view(argv[1]) == "gpu-parity") {
    return parity_command(argv[2]);
  }
  // All others compute on the CPU: where there is a GPU, nothing of CUDA is loaded for them.
  setenv("LOCKSTEP_DEVICE", "cpu", 1);
  if (argc == 3 && std::string_view(argv[1]) == "checkpoint") {
    return bench_checkpoint_command(argv[2]);
  }
  if (argc == 3 && std::string_view(argv[1]) == "data") {
    return bench_data_command(argv[2]);
  }
  if (argc == 3 && std::string_view(argv[1]) == "ddp") {
    return bench_ddp_command(argv[2]);
  }
  if (argc == 3 && std::string_view(argv[1]) == "load") {
    return bench_load_command(argv[2]);
  }
  if (argc == 2 && std::string_view(argv[1]) == "launch") {
    return bench_launch_job();
  }
  const auto plan = read_plan<BenchPlan>(argc == 2 ? argv[1] : "", "lockstep bench");
  const BenchRank rank = enter_bench();
  const std::string address = join_network(plan, rank.launch);
  Group group = make_group(rank.store, {.name = "bench",
                                        .rank = rank.launch.rank,
                                        .size = rank.launch.size,
                                        .timeout = kBenchPatience,
                                        .wire = parse_wire(plan.wire)});
  BenchPeers peers{.names = plan.peers, .gloo = nullptr, .mpis = {}};
  if (std::find(plan.peers.begin(), plan.peers.end(), "gloo") != plan.peers.end()) {
    peers.gloo = comm::make_raw_gloo(rank.store, {.prefix = "peer/",
                                                  .rank = rank.launch.rank,
                                                  .size = rank.launch.size,
                                                  .address = address,
                                                  .timeout = kBenchPatience});
  }
  if (group.rank() == 0) {
    for (const BenchMpi& mpi : plan.mpi) {
      peers.mpis.push_back(std::make_unique<MpiRanks>(mpi, group.size()));
    }
  }
  measure(plan, group, peers);
  group.barrier();  // nobody takes the peer's connections down before all are done with them
  return 0;
}

}  // namespace lockstep
