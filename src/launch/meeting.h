#pragma once

// How the nodes of a job find each other. One of them is the head: it listens, the others join it.

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/socket.h"

namespace lockstep {

struct MeetingOptions {
  std::string job_id;           // empty: made up, which only a job of one `lockstep run` can do
  std::string endpoint;         // "host[:port]" of the head; empty: this process alone is the job
  std::optional<bool> is_head;  // unset: it is, if `endpoint` is an address of this host
  int node_rank = -1;           // fixed from outside; -1: in the order of joining
  std::string local_addr;       // the address or interface by which other nodes reach this one
  std::string secret_file;      // empty: LOCKSTEP_JOB_SECRET, else the user's key
  std::chrono::nanoseconds join_timeout =
      std::chrono::seconds(600);                                  // until enough nodes are there
  std::chrono::nanoseconds last_call = std::chrono::seconds(30);  // for more than the least number
  std::chrono::nanoseconds lost_after = std::chrono::milliseconds(2500);  // of silence
};

inline constexpr uint16_t kDefaultMeetingPort = 29400;  // as torchrun's c10d

}  // namespace lockstep
