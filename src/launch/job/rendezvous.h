#pragma once

// How the nodes of a job find each other. One of them is the head: it listens, the others join it.

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/env.h"
#include "base/socket.h"

namespace lockstep::launch {

struct RendezvousOptions {
  std::string job_id;    // empty: made up, which only a job of one `lockstep run` can do
  std::string endpoint;  // "host[:port]" of the head; empty: this process alone is the job
  int num_ports = 1;     // from the endpoint's port on; the head takes the first that is free
  std::optional<bool> is_head;  // unset: it is, if `endpoint` is an address of this host
  int node_rank = -1;           // fixed from outside; -1: in the order of joining
  std::string local_addr;       // the address or interface by which other nodes reach this one
  std::string secret;           // given by the process that started this one; empty: as follows
  std::string secret_file;      // empty: as job_secret() or own_job_secret() says
  std::chrono::nanoseconds join_timeout = std::chrono::seconds(600);  // until enough nodes are
                                                                      // there
  std::chrono::nanoseconds last_call = std::chrono::seconds(30);  // for more than the least number
  std::chrono::nanoseconds lost_after = base::kDefaultLostAfter;  // of silence
};

inline constexpr uint16_t kDefaultRendezvousPort = 29400;  // as torchrun's c10d

// Where this process stands. Nothing is open yet.
struct Rendezvous {
  std::string job_id;
  std::string secret;
  bool is_head = true;
  bool may_join = false;  // if the endpoint is taken: another of this job may be the head
  std::vector<base::Endpoint>
      endpoints;           // of the head: where to listen, or where to join, in this order
  std::string local_addr;  // numeric; empty: what the connection to the head shows
};

// Throws UsageError if no rendezvous is possible with these options.
Rendezvous plan_rendezvous(const RendezvousOptions& options, const base::Env& env);

// The secret of a job that one `lockstep run` starts as a whole, here or over ssh: what
// `secret_file` holds, or a new one if that is empty. Throws as job_secret().
std::string own_job_secret(const std::string& secret_file);

// The secret of a job of several processes. From `secret_file`; else LOCKSTEP_JOB_SECRET; else made
// of the job id and the user's key, a file (0600) in the user's home that is made when first needed
// and is the same on all nodes where they share that home. Throws UsageError for a file that others
// can read or that is too short.
std::string job_secret(const std::string& secret_file, const std::string& job_id,
                       const base::Env& env);

}  // namespace lockstep::launch
