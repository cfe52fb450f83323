#pragma once

// Store: a small table of texts that the ranks of a job share. Groups are made over it.
//
// Example:
//   // in one process:
//   auto server = lockstep::Store::host({.job_id = "demo", .secret = key});
//   // in the others:
//   auto store = lockstep::Store::connect(
//       {.endpoint = "10.0.1.10:29400", .job_id = "demo", .secret = key});
//   store.set("weights", path);
//   std::string weights = store.get("weights");  // waits until it is set
//
// Most programs never see a store: init() finds the one that `lockstep run`, torchrun, srun or
// mpirun provides. docs/formats/store.md describes the wire format.
//
// Both sides prove that they know the job's secret before anything else is said, and the secret
// itself is never sent. The contents are not encrypted.
//
// Errors: every operation throws TimeoutError when its time is over and PeerLostError once the
// server is gone. A store whose server is gone stays unusable.
// Threads: every method may be called concurrently. Each connection and each server has a thread.

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
  // For host(): the address to listen on; port 0 stands for any. For connect(): the server.
  std::string endpoint = "127.0.0.1:0";
  std::string job_id;  // the same on all ranks
  std::string secret;  // the same on all ranks; if empty, anyone who reaches the port is let in
  std::chrono::milliseconds timeout =
      std::chrono::minutes(5);  // for connect() and for each operation
};

// A connection to a store. A Store is a handle: copies share the connection, and the server if
// host() started it.
class Store {
 public:
  // Starts a server in this process and connects to it. The server runs until the last copy of this
  // Store is gone. Throws UsageError for a malformed endpoint, and IoError if the process cannot
  // listen there.
  static Store host(StoreOptions options);

  // Connects to a server, and retries until it is there or the time is over. Throws UsageError if
  // the server refuses this process because of another job or another secret.
  static Store connect(StoreOptions options);

  void set(const std::string& key, const std::string& value);
  std::string get(const std::string& key);                     // waits until somebody sets it
  std::optional<std::string> try_get(const std::string& key);  // returns nothing if it is not set
  int64_t add(const std::string& key, int64_t delta);  // returns the sum; an absent key counts as 0
  bool erase(const std::string& key);                  // returns whether it was there

  // Sets `desired` if the key holds `expected`, where an absent key holds "". Returns what the key
  // holds afterwards.
  std::string compare_set(const std::string& key, const std::string& expected,
                          const std::string& desired);

  // The address to which the other ranks connect, such as "127.0.0.1:41233".
  std::string endpoint() const;

  // Only the implementation uses these two.
  const std::shared_ptr<base::StoreClient>& client() const { return client_; }
  std::chrono::milliseconds timeout() const { return timeout_; }

 private:
  Store(std::shared_ptr<base::StoreServer> server, std::shared_ptr<base::StoreClient> client,
        std::chrono::milliseconds timeout);

  std::shared_ptr<base::StoreServer> server_;  // set by host(); destroyed after client_
  std::shared_ptr<base::StoreClient> client_;
  std::chrono::milliseconds timeout_;
};

}  // namespace lockstep
