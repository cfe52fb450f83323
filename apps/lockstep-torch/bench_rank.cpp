#include "bench_rank.h"

#include <cstdio>

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

#include "base/env.h"

namespace lockstep {

BenchRank enter_bench() {
  const Env env;
  if (!env.has("LOCKSTEP_LOG_LEVEL")) {
    log::set_level(log::Level::Warn);  // the user reads the figures, not how the ranks met
  }
  const LaunchEnv launch = read_launch_env(env);
  if (launch.meeting != LaunchEnv::Meeting::Launcher) {
    throw UsageError("the ranks are started by `lockstep bench`, which this process is not");
  }
  log::set_rank(launch.rank);
  at::set_num_threads(1);  // ranks share the cores
  at::set_num_interop_threads(1);
  return {.launch = launch,
          .store = Store::connect({.endpoint = launch.store.text(),
                                   .job_id = launch.job_id,
                                   .secret = launch.secret,
                                   .timeout = kBenchPatience})};
}

void print_now(const std::string& text) {
  fmt::print("{}", text);
  std::fflush(stdout);
}

}  // namespace lockstep
