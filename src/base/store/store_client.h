#pragma once

// A rank's side of the store: the table, and the membership by which deaths are noticed.

#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "base/deadline.h"
#include "base/socket.h"
#include "base/store/store_protocol.h"
#include "base/timed_lock.h"

namespace lockstep::base {

struct StoreClientOptions {
  Endpoint server;
  std::string job_id;  // or a scope of it: store::rank_scope()
  std::string secret;
};

// What a member hears. Called on the client's reader thread: be quick, and do not call back into
// the client except for send_note().
struct MemberEvents {
  std::function<void(int rank, const std::string& who)> lost;    // that member's connection ended
  std::function<void(int from, const std::string& text)> noted;  // a note from it
  std::function<void(const std::string& why)> disconnected;      // the store itself is gone
};

// One connection, shared by any number of threads and groups.
// Throws TimeoutError at a deadline, PeerLostError once the server is gone.
class StoreClient {
 public:
  // Connects and proves both sides. Throws UsageError if the server refuses, or if it is not this
  // job's.
  StoreClient(StoreClientOptions options, Deadline deadline);
  ~StoreClient();
  StoreClient(const StoreClient&) = delete;
  StoreClient& operator=(const StoreClient&) = delete;

  void set(const std::string& key, const std::string& value, Deadline deadline);
  void append(const std::string& key, const std::string& value, Deadline deadline);
  std::string get(const std::string& key, Deadline deadline);  // waits until somebody sets it
  std::optional<std::string> try_get(const std::string& key, Deadline deadline);
  int64_t add(const std::string& key, int64_t delta, Deadline deadline);
  // Sets `desired` if the value is `expected` (an absent key equals ""); returns what is there
  // afterwards.
  std::string compare_set(const std::string& key, const std::string& expected,
                          const std::string& desired, Deadline deadline);
  bool erase(const std::string& key, Deadline deadline);
  int64_t erase_prefix(const std::string& prefix, Deadline deadline);
  int64_t num_keys(Deadline deadline);

  // From now until leave() this process is member `rank` of `group`; `who` names it to the others.
  void join(const std::string& group, int rank, const std::string& who, MemberEvents events,
            Deadline deadline);
  // A goodbye: the others hear nothing of it. After it returns no event of this group is called any
  // more.
  void leave(const std::string& group, int rank, Deadline deadline);
  // To one member or, with to = store::kToAll, to every other one. Delivered in order,
  // unacknowledged.
  void send_note(const std::string& group, int from, int to, const std::string& text);

  // The numeric address by which this process reaches the server: the interface that peers should
  // use.
  std::string local_host() const { return socket_.local_host(); }
  // The server's numeric address, as this process sees it.
  std::string peer_host() const { return socket_.peer_host(); }
  const Endpoint& server() const { return options_.server; }
  // The job's secret, by which its processes prove to each other that they belong to it.
  const std::string& secret() const { return options_.secret; }

 private:
  store::Message request(store::Kind kind, std::string body, Deadline deadline);
  void send(const store::Message& message, Deadline deadline);
  void cancel(uint64_t id, std::chrono::nanoseconds time) noexcept;
  void read_loop();
  void dispatch(const store::Message& message);
  void fail(const std::string& why);

  StoreClientOptions options_;
  Socket socket_;
  std::string unread_;  // of the reader thread, and of the greeting before it runs

  TimedLock send_mutex_;  // guards what goes out, and unsent_
  std::string unsent_;    // of a frame whose sender gave up in the middle; goes first
  std::mutex mutex_;      // guards what follows
  uint64_t next_id_ = 1;
  std::map<uint64_t, std::promise<store::Message>> pending_;
  std::string failure_;  // not empty: the connection is over

  // Held while an event runs, so that leave() can promise silence. Always taken before mutex_.
  std::recursive_mutex events_mutex_;
  std::map<std::string, MemberEvents> members_;

  std::thread reader_;
};

}  // namespace lockstep::base
