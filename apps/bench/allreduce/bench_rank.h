#pragma once

// How a process of `lockstep bench` becomes one of its ranks.

#include <chrono>
#include <string>

#include <lockstep/comm/store.h>

#include "comm/start/launch_env.h"

namespace lockstep {

// An operation that takes longer has lost a rank.
inline constexpr auto kBenchPatience = std::chrono::minutes(2);

struct BenchRank {
  comm::LaunchEnv launch;
  Store store;  // in which the ranks find each other
};

// Call it first. One thread computes in each rank from here on, for us and for the peer. Throws
// UsageError if this process was not started by `lockstep bench`.
BenchRank enter_bench();

// Prints on standard output at once: a pipe would keep it back until the end.
void print_now(const std::string& text);

}  // namespace lockstep
