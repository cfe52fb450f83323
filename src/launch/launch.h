#pragma once

// Starts a program on every rank of a job and stays until the last of its processes is gone.
//
//   leader    this process, one per host: signals, this host's ranks, the head's orders
//     agent     one per node (emulated or not): output, logs, reports to the leader
//       guardian  parent of the node's workers; when it ends, for whatever reason, so do they
//         worker    one per rank: the user's program
//
// One of the leaders has the head (head.h) in its poll loop: the job's store, the door by which the
// other leaders join, and the coordinator, who decides when ranks start, stop and start anew.
//
// Every link of a host's chain is a socket whose other end only the neighbour holds: the end of a
// process is the end of file at its neighbours, so that `kill -9` of any of them leaves nobody
// behind. Between hosts it is TCP, where both sides prove themselves and say that they live.

#include <chrono>
#include <csignal>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/process/isolation.h"
#include "image/container.h"
#include "launch/flags/output_options.h"
#include "launch/job/rendezvous.h"
#include "launch/node/placement.h"
#include "launch/node/stage.h"
#include "remote/hosts.h"

namespace lockstep::launch {

struct LaunchOptions {
  std::string name = "lockstep run";     // begins every message
  int min_nodes = 1;                     // `lockstep run`s that the job needs, in [1, max_nodes]
  int max_nodes = 1;                     // and that it takes, at most kMaxNodes
  int procs_per_node = 1;                // ranks on each node, in [1, kMaxProcsPerNode]
  int local_nodes = 1;                   // nodes emulated on this host, in [1, kMaxLocalNodes]
  RendezvousOptions rendezvous;          // how several `lockstep run`s become one job
  std::vector<remote::HostEntry> hosts;  // not empty: the nodes are started there, over ssh
  std::vector<std::string> arguments;    // for them: the flags and the program as they were given
  std::vector<std::string> host_env;     // for them: further variables, NAME or NAME=VALUE
  int life_fd = -1;                      // end of file on it ends this node (-1: none)
  int max_restarts = 0;                  // of all ranks after one of them has failed
  std::string role = "default";          // ROLE_NAME
  uint16_t master_port = 0;              // MASTER_PORT on one node; 0: a free one
  OutputOptions output;
  PlacementOptions placement;
  std::vector<StageItem> stages;  // files that each node gets before its ranks start
  std::optional<image::ContainerOptions> container;                 // run the program in this image
  std::chrono::nanoseconds stop_grace = std::chrono::seconds(10);   // from SIGTERM to SIGKILL
  std::vector<int> stop_signals{SIGINT, SIGTERM, SIGHUP, SIGQUIT};  // that end the job
  bool signals_are_given = false;  // by the user: also one that was ignored (nohup) ends it
  int stdin_rank = -1;             // that has this process's input, or terminal; -1: none
  base::IsolationMode isolation = base::IsolationMode::Auto;
  bool head_is_heard = false;  // whoever reads this node's output reads the head's report too
  int quiet_code = 0;  // a rank that fails with it has said why itself: no report (0: none such)
  // REQUIRED: program (searched in PATH) and arguments. {rank}, {local_rank} and {world_size} in an
  // argument are replaced by the rank's own.
  std::vector<std::string> command;
};

inline constexpr int kMaxProcsPerNode = remote::kMaxSlots;
inline constexpr int kMaxLocalNodes = 64;
inline constexpr int kMaxNodes = 16384;

// Throws UsageError for an option out of range, as run_job() does.
void check_options(const LaunchOptions& options);

// Runs the job to its end and returns its exit code: 0 if every rank ended with 0, that of the
// first failure (128 + signal) otherwise, 128 + signal if this process was told to stop. Says on
// standard error what failed. Forks: call it before any thread exists. Throws UsageError for an
// option out of range, IoError when the system refuses what the job needs before it starts.
int run_job(const LaunchOptions& options);

}  // namespace lockstep::launch
