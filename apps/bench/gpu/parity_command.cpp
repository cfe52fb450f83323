#include "bench/gpu/parity_command.h"

#include <algorithm>
#include <cstdlib>

#include <ATen/Context.h>

#include <lockstep/device/device.h>

#include "bench/allreduce/bench_rank.h"
#include "bench/gpu/parity_dump.h"
#include "bench/gpu/parity_result.h"

namespace lockstep {
namespace {

// The same sums in the same order, every time and at full precision.
void ask_for_exact_kernels() {
  at::Context& context = at::globalContext();
  context.setDeterministicAlgorithms(/*b=*/true, /*warn_only=*/true);
  context.setDeterministicCuDNN(true);
  context.setBenchmarkCuDNN(false);
  context.setAllowTF32CuDNN(false);
  context.setAllowTF32CuBLAS(false);
  // The fused kernels of attention add their gradients in any order.
  context.setSDPUseFlash(false);
  context.setSDPUseMemEfficient(false);
  context.setSDPUseCuDNN(false);
}

ParityResult compare(Group& world, const ParityPlan& plan, at::Device device) {
  ParityResult result{.device_name = device.is_cuda() ? "cuda" : "cpu"};
  for (const int ranks : plan.ranks) {
    Group group = world.split(world.rank() < ranks ? 0 : -1);
    if (world.rank() < ranks) {
      for (const std::string& model : plan.models) {
        ParityOptions options{.model = model, .device = device, .steps = plan.steps};
        result.plain[{model, ranks}] = train_for_parity(group, options);
        options.shards = kParityShards;
        result.sharded[{model, ranks}] = train_for_parity(group, options);
      }
    }
    world.barrier();
  }
  if (world.rank() == 0) {
    for (const std::string& model : plan.models) {
      result.cpu[model] =
          train_for_parity(make_single_group(), {.model = model, .steps = plan.steps});
    }
  }
  world.barrier();
  return result;
}

}  // namespace

int parity_command(const std::string& text) {
  const auto plan = read_plan<ParityPlan>(text, "lockstep bench gpu-parity");
  // Both are read when CUDA begins.
  setenv("LOCKSTEP_DEVICE", plan.device.c_str(), 1);
  setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", 1);
  const BenchRank rank = enter_bench();
  const at::Device device = local_device();
  ask_for_exact_kernels();
  Group world = rank.launch.size == 1 ? make_single_group()
                                      : make_group(rank.store, {.name = "bench",
                                                                .rank = rank.launch.rank,
                                                                .size = rank.launch.size,
                                                                .timeout = kBenchPatience});
  const ParityResult result = compare(world, plan, device);
  if (world.rank() != 0) {
    return 0;
  }
  if (!plan.dump.empty()) {
    for (const std::string& model : plan.models) {
      dump_for_parity(plan.dump, model, result.plain.at({model, plan.ranks.front()}));
    }
  }
  print_now(plan.json ? parity_json(plan, result) : parity_table(plan, result));
  return is_reproducible(plan, result) ? 0 : 1;
}

}  // namespace lockstep
