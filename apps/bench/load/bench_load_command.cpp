#include "bench/load/bench_load_command.h"

#include "bench/allreduce/bench_rank.h"
#include "bench/load/bench_load_measure.h"

namespace lockstep {

int bench_load_command(const std::string& text) {
  const auto plan = read_plan<LoadBenchPlan>(text, "lockstep bench load");
  const BenchRank rank = enter_bench();
  Group group = make_group(rank.store, {.name = "bench",
                                        .rank = rank.launch.rank,
                                        .size = rank.launch.size,
                                        .timeout = kBenchPatience});
  const LoadBenchResult result = measure_load(group, plan);
  if (group.rank() == 0) {
    print_now(plan.json ? load_bench_json(plan, result) : load_bench_table(plan, result));
  }
  return 0;
}

}  // namespace lockstep
