#pragma once

// The store: a small key-value table that the ranks of a job share, and the place where a rank's
// death is noticed. One server per job, in the agent of `lockstep run` or, without an agent, in
// rank 0. The wire format is docs/formats/store.md.
//
// A client proves that it knows the job's secret before anything else it says is read. A member (a
// rank) keeps its connection open; when that ends without a goodbye, every other member of the same
// group is told at once. Members may send each other short notes through the server (who has
// arrived where).

#include <memory>
#include <string>

#include "base/socket.h"

namespace lockstep {

struct StoreServerOptions {
  Endpoint listen{"127.0.0.1", 0};  // the one interface that is needed; port 0: the kernel chooses
  std::string job_id;               // another job's ranks are refused
  std::string secret;               // empty: no authentication (said in the log by who decides it)
  size_t max_value_bytes = 16u << 20;
  size_t max_total_bytes = 256u << 20;
  size_t max_connections = 65536;
};

// Serves from a thread of its own until destroyed.
class StoreServer {
 public:
  // Binds, but serves only after start(): a launcher forks between the two.
  // Throws IoError if the endpoint cannot be bound.
  explicit StoreServer(StoreServerOptions options);
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

  void start();

  // Where it listens, with the port that was chosen.
  const Endpoint& endpoint() const;

 private:
  class Loop;
  std::unique_ptr<Loop> loop_;
};

}  // namespace lockstep
