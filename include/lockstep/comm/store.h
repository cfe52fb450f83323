#pragma once

// Store: a small table of texts that the ranks of a job share. Groups are made over it.
//
//   Store store = Store::host({.job_id = "demo", .secret = key});          // in one process
//   Store store = Store::connect({.endpoint = "10.0.1.10:29400", .job_id = "demo", .secret = key});
//   store.set("weights", path);
//   store.get("weights");                                                  // waits until it is set
//
// Most programs never see it: init() finds the store that `lockstep run` (or torchrun, srun,
// mpirun) gives them. The wire format is docs/formats/store.md.
//
// Both sides prove that they know the job's secret before anything else is said; the secret itself
// is never sent. The contents are not encrypted.
//
// Errors: TimeoutError when the time is over, PeerLostError once the server is gone, UsageError
// when the server refuses this process (another job, another secret). Threads: every method may be
// called concurrently.

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace lockstep {

namespace base {
class StoreClient;
class StoreServer;
}  // namespace base

struct StoreOptions {
  std::string endpoint =
      "127.0.0.1:0";   // host(): where to listen (port 0: any); connect(): the server
  std::string job_id;  // the same on all ranks
  std::string secret;  // the same on all ranks; empty: anyone who reaches the port is let in
  std::chrono::milliseconds timeout =
      std::chrono::minutes(5);  // of connect() and of each operation
};

class Store {
 public:
  // Starts a server in this process, which lives as long as this Store or a copy of it, and
  // connects to it.
  static Store host(StoreOptions options);

  // Retries until the server is there or the time is over.
  static Store connect(StoreOptions options);

  void set(const std::string& key, const std::string& value);
  std::string get(const std::string& key);                     // waits until somebody sets it
  std::optional<std::string> try_get(const std::string& key);  // nothing if it is not set
  int64_t add(const std::string& key, int64_t delta);  // an absent key counts as 0; returns the sum
  bool erase(const std::string& key);                  // true if it was there

  // Sets `desired` if the key holds `expected` (an absent key equals ""); returns what it holds
  // afterwards.
  std::string compare_set(const std::string& key, const std::string& expected,
                          const std::string& desired);

  // "127.0.0.1:41233": what the others must connect to.
  std::string endpoint() const;

  // For the implementation.
  const std::shared_ptr<base::StoreClient>& client() const { return client_; }
  std::chrono::milliseconds timeout() const { return timeout_; }

 private:
  Store(std::shared_ptr<base::StoreServer> server, std::shared_ptr<base::StoreClient> client,
        std::chrono::milliseconds timeout);

  std::shared_ptr<base::StoreServer>
      server_;  // only where host() was called; destroyed after client_
  std::shared_ptr<base::StoreClient> client_;
  std::chrono::milliseconds timeout_;
};

}  // namespace lockstep
