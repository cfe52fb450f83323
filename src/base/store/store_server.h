#pragma once

// The store: a small key-value table that the ranks of a job share, and the place where a rank's
// death is noticed. One server per job, in the agent of `lockstep run` or, without an agent, in
// rank 0. The wire format is docs/formats/store.md.
//
// A client proves that it knows the job's secret before anything else it says is read. A member (a
// rank) keeps its connection open; when that ends without a goodbye, every other member of the same
// group is told at once. Members may send each other short notes through the server (who has
// arrived where).

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/deadline.h"
#include "base/socket.h"

namespace lockstep::base {

struct StoreServerOptions {
  Endpoint listen{"127.0.0.1", 0};  // the one interface that is needed; port 0: the kernel chooses
  std::string job_id;               // another job's ranks are refused
  std::string secret;               // empty: no authentication (said in the log by who decides it)
  // A client is lost after this much silence; an agent whose connection broke may come back within.
  std::chrono::nanoseconds lost_after = kDefaultLostAfter;
  size_t max_value_bytes = 16u << 20;
  size_t max_total_bytes = 256u << 20;
  size_t max_connections = 65536;
};

// The head of a job listens to its agents (one per node) on the same port; docs/formats/store.md.
class AgentListener {
 public:
  virtual ~AgentListener() = default;
  virtual void agent_came(uint64_t agent, const std::string& address) = 0;  // it has proved itself
  virtual void agent_said(uint64_t agent, const std::string& text) = 0;
  virtual void agent_went(uint64_t agent) = 0;  // it hung up, or its connection broke for too long
};

// Serves from a thread of its own (start()), or from the caller's poll loop (fd(), serve()).
class StoreServer {
 public:
  // Binds, but serves only after start(): a launcher forks between the two.
  // Throws IoError if the endpoint cannot be bound.
  explicit StoreServer(StoreServerOptions options);
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

  void start();

  // Without a thread: when fd() is readable or next_timeout() has passed, call serve(). What
  // follows is for this way, or before start().
  int fd() const;
  Deadline next_timeout() const;
  void serve();

  // From now on agents are let in and heard by `listener`, which must outlive this object.
  void listen_to_agents(AgentListener& listener);
  void tell_agent(uint64_t agent, const std::string& text);
  void hang_up(uint64_t agent);  // once everything told to it is sent; agent_went() follows

  // The ranks are started anew: every key and every rank's connection of before is gone, and only
  // ranks of this generation are let in. Until the first call ranks prove the plain job id.
  void begin_generation(int64_t generation);

  // A note to the ranks that have joined `group`, and how many there are.
  void announce(const std::string& group, const std::string& text);
  size_t num_members(const std::string& group) const;
  // The value of a key, if it is set.
  std::optional<std::string> find(const std::string& key) const;

  // Where it listens, with the port that was chosen.
  const Endpoint& endpoint() const;

 private:
  class Loop;
  std::unique_ptr<Loop> loop_;
};

}  // namespace lockstep::base
