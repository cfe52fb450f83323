#pragma once

// Trying and measuring the network between two hosts, with TCP connections of lockstep's own.
//
// A connection begins with the listener's token and a letter: 'e', what follows is sent back, or
// 'c', what follows is counted to its end and the count (8 bytes, big end first) sent back. The
// listener answers '+', or closes the connection: it measures only for peers that know the token.

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "base/socket.h"

namespace lockstep::doctor {

inline constexpr size_t kProbeTokenBytes = 64;  // of make_secret()

// Listens on one address, on a port that the kernel chooses, and answers in a thread of its own
// until it is destroyed.
class ProbeListener {
 public:
  // `token`: kProbeTokenBytes of them. Throws IoError.
  ProbeListener(const std::string& address, std::string token);
  ~ProbeListener();
  ProbeListener(const ProbeListener&) = delete;
  ProbeListener& operator=(const ProbeListener&) = delete;

  const base::Endpoint& endpoint() const { return listener_.endpoint(); }
  const std::string& token() const { return token_; }

 private:
  struct Peer {
    base::Socket socket;
    std::string greeting;    // token and letter, until it is complete
    uint64_t num_bytes = 0;  // counted
    base::Deadline must_greet = base::Deadline::never();
  };

  void serve();
  void accept_all();
  bool greet(Peer& peer, const char* bytes, size_t size);
  bool handle(Peer& peer);

  const std::string token_;
  base::Listener listener_;
  base::UniqueFd stop_;
  std::vector<Peer> peers_;
  std::thread thread_;
};

struct ProbeTarget {
  base::Endpoint endpoint;  // numeric
  std::string token;
};

// Connects to all at once and greets them. For each: "" or why it cannot be reached.
std::vector<std::string> try_links(const std::vector<ProbeTarget>& targets,
                                   std::chrono::milliseconds timeout);

struct LinkSpeed {
  double rtt_us = 0;    // median of small round trips
  double gb_per_s = 0;  // one connection, one direction
};

// Takes about 0.5 s. Throws IoError or TimeoutError.
LinkSpeed measure_link(const ProbeTarget& target);

}  // namespace lockstep::doctor
