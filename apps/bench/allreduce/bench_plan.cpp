#include "bench/allreduce/bench_plan.h"

#include <nlohmann/json.hpp>

#include <lockstep/base/error.h>

namespace lockstep {
namespace {

BenchOperation parse_operation(const std::string& name) {
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

}  // namespace

BenchPlan read_bench_plan(const std::string& text) {
  try {
    const auto json = nlohmann::json::parse(text);
    BenchPlan plan;
    plan.operation_name = json.at("operation").get<std::string>();
    plan.operation = parse_operation(plan.operation_name);
    plan.sizes_bytes = json.at("bytes").get<std::vector<int64_t>>();
    plan.dtype = json.at("dtype").get<std::string>();
    plan.wire = json.at("wire").get<std::string>();
    plan.rate = json.at("rate").get<std::string>();
    plan.repeats = json.at("repeats").get<int>();
    plan.num_nodes = json.at("nodes").get<int>();
    plan.peers = json.at("peers").get<std::vector<std::string>>();
    for (const auto& mpi : json.at("mpi")) {
      plan.mpi.push_back({.name = mpi.at("name"), .command = mpi.at("command")});
    }
    plan.missing = json.at("missing").get<std::map<std::string, std::string>>();
    plan.json = json.at("json").get<bool>();
    plan.bars = json.at("bars").get<bool>();
    for (const auto& node : json.at("network")) {
      plan.network.push_back({.pid = node.at("pid"), .address = node.at("address")});
    }
    return plan;
  } catch (const nlohmann::json::exception& error) {
    throw UsageError("the ranks were given no plan ({}); start them with `lockstep bench`",
                     error.what());
  }
}

}  // namespace lockstep
