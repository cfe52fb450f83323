#include "bench/allreduce/bench_rank.h"

#include <cstdio>

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

#include "base/env.h"
#include "base/secret.h"

namespace lockstep {
namespace {

// Finds the launcher's store. A rank that is alone is told of none, but the peer wants one.
Store find_store(const comm::LaunchEnv& launch) {
  const StoreOptions own{
      .job_id = launch.job_id, .secret = base::make_secret(), .timeout = kBenchPatience};
  return launch.size == 1 ? Store::host(own)
                          : Store::connect({.endpoint = launch.store.text(),
                                            .job_id = launch.job_id,
                                            .secret = launch.secret,
                                            .timeout = kBenchPatience});
}

}  // namespace

BenchRank enter_bench() {
  const base::Env env;
  if (!env.has("LOCKSTEP_LOG_LEVEL")) {
    log::set_level(log::Level::Warn);  // the user reads the figures, not how the ranks met
  }
  const comm::LaunchEnv launch = comm::read_launch_env(env);
  if (!env.has("LOCKSTEP_RANK")) {
    throw UsageError("the ranks are started by `lockstep bench`, which this process is not");
  }
  log::set_rank(launch.rank);
  at::set_num_threads(1);  // ranks share the cores
  at::set_num_interop_threads(1);
  return {.launch = launch, .store = find_store(launch)};
}

void print_now(const std::string& text) {
  fmt::print("{}", text);
  std::fflush(stdout);
}

}  // namespace lockstep
