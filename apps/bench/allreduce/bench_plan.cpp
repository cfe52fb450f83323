#include "bench/allreduce/bench_plan.h"

namespace lockstep {

BenchOperation bench_operation(const std::string& name) {
  if (name == "allreduce") {
    return BenchOperation::AllReduce;
  }
  if (name == "broadcast") {
    return BenchOperation::Broadcast;
  }
  if (name == "allgather") {
    return BenchOperation::AllGather;
  }
  if (name == "reducescatter") {
    return BenchOperation::ReduceScatter;
  }
  throw UsageError("{} is not measured here", name);
}

}  // namespace lockstep
