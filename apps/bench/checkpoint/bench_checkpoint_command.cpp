#include "bench/checkpoint/bench_checkpoint_command.h"

#include "bench/allreduce/bench_rank.h"
#include "bench/checkpoint/bench_checkpoint_measure.h"

namespace lockstep {

int bench_checkpoint_command(const std::string& text) {
  const auto plan = read_plan<CheckpointBenchPlan>(text, "lockstep bench checkpoint");
  const BenchRank rank = enter_bench();
  Group group = make_group(rank.store, {.name = "bench",
                                        .rank = rank.launch.rank,
                                        .size = rank.launch.size,
                                        .timeout = kBenchPatience});
  const CheckpointBenchResult result = measure_checkpoint(group, plan);
  if (group.rank() == 0) {
    print_now(plan.json ? checkpoint_bench_json(plan, result)
                        : checkpoint_bench_table(plan, result));
  }
  return 0;
}

}  // namespace lockstep
