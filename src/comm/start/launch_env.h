#pragma once

// Who started this process, as what rank, and where the ranks meet: read from the environment,
// nothing else. docs/formats/environment.md is the manual of these variables.

#include <optional>
#include <string>

#include "base/env.h"
#include "base/socket.h"

namespace lockstep::comm {

struct LaunchEnv {
  enum class StoreHost {
    None,        // a group of one
    Launcher,    // the launcher hosts our store at `store`
    RankZero,    // rank 0 hosts our store at `store`
    TorchStore,  // torchrun's agent hosts a c10d store at `store`: rank 0 hosts ours and tells the
                 // address there
  };

  std::string source = "no launcher";  // "lockstep run", "torchrun", ...: for the log
  int rank = 0;
  int size = 1;
  StoreHost store_host = StoreHost::None;
  base::Endpoint store;
  std::string job_id;  // keeps jobs apart that meet at one address
  std::string secret;  // empty: none was given
};

// Throws UsageError when variables are missing, not numbers, or contradict each other.
LaunchEnv read_launch_env(const base::Env& env);

}  // namespace lockstep::comm
