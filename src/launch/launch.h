#pragma once

// Starts a program on every rank of a job and stays until the last of its processes is gone.
//
//   leader    this process, one per host: handles signals and the head's orders, starts the agents
//     agent     one per node (emulated or not): carries output and logs, reports to the leader
//       guardian  one per node: parent of its workers, which end when it ends, whatever the reason
//         worker    one per rank: the user's program
//
// One of the leaders has the head (head.h) in its poll loop: the job's store, the door by which the
// other leaders join, and the coordinator, which decides when ranks start, stop and restart.
//
// Neighbours in a host's chain are connected by a socket that no other process holds. When one
// ends, the other reads end of file, so `kill -9` of any of them leaves no process running. Between
// hosts the connection is TCP; both sides prove who they are and report that they are alive.

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
  std::string name = "lockstep run";     // the first words of every message
  int min_nodes = 1;                     // the least number of `lockstep run`s, in [1, max_nodes]
  int max_nodes = 1;                     // the largest number of them, at most kMaxNodes
  int procs_per_node = 1;                // ranks on each node, in [1, kMaxProcsPerNode]
  int local_nodes = 1;                   // nodes emulated on this host, in [1, kMaxLocalNodes]
  RendezvousOptions rendezvous;          // how several `lockstep run`s become one job
  std::vector<remote::HostEntry> hosts;  // not empty: the nodes are started there, over ssh
  bool hosts_count = false;              // each counts its own GPUs or cores for procs_per_node
  std::vector<std::string> arguments;    // what they are told to run: flags and program as given
  std::vector<std::string> host_env;     // variables to pass to them too: NAME or NAME=VALUE
  int life_fd = -1;                      // if it is not -1, end of file on it ends this node
  int max_restarts = 0;                  // how often all ranks may restart after a failure
  std::string role = "default";          // ROLE_NAME
  uint16_t master_port = 0;              // MASTER_PORT on one node; 0: a free one
  OutputOptions output;
  PlacementOptions placement;
  std::vector<StageItem> stages;  // files that each node gets before its ranks start
  std::optional<image::ContainerOptions> container;                 // run the program in this image
  std::chrono::nanoseconds stop_grace = std::chrono::seconds(10);   // from SIGTERM to SIGKILL
  std::vector<int> stop_signals{SIGINT, SIGTERM, SIGHUP, SIGQUIT};  // the signals that end the job
  bool signals_are_given = false;  // the user named them: an ignored one (nohup) counts too
  int stdin_rank = -1;             // the rank that gets this process's input; -1: none
  base::IsolationMode isolation = base::IsolationMode::Auto;
  bool head_is_heard = false;  // the reader of this node's output sees the head's report too
  // A rank that fails with this code has said why itself, so there is no report. 0: no such code.
  int quiet_code = 0;
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
