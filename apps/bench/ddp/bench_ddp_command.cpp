#include "bench/ddp/bench_ddp_command.h"

#include "bench/allreduce/bench_rank.h"
#include "bench/ddp/bench_ddp_measure.h"
#include "comm/backends/raw_gloo.h"

namespace lockstep {

int bench_ddp_command(const std::string& text) {
  const auto plan = read_plan<DdpBenchPlan>(text, "lockstep bench ddp");
  const BenchRank rank = enter_bench();
  Group group = make_group(rank.store, {.name = "bench",
                                        .rank = rank.launch.rank,
                                        .size = rank.launch.size,
                                        .timeout = kBenchPatience});
  c10::intrusive_ptr<c10d::Backend> gloo;
  if (plan.has_peer()) {
    gloo = comm::make_raw_gloo(rank.store, {.prefix = "peer/",
                                            .rank = rank.launch.rank,
                                            .size = rank.launch.size,
                                            .timeout = kBenchPatience});
  }
  const DdpBenchResult result = measure_ddp(group, gloo, plan);
  if (group.rank() == 0) {
    print_now(plan.json ? ddp_bench_json(plan, result) : ddp_bench_table(plan, result));
  }
  group.barrier();  // nobody takes the peer's connections down before all are done with them
  return 0;
}

}  // namespace lockstep
