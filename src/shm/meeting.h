#pragma once

// How the ranks of one host hand each other their memory: every rank has one socket to rank 0, the
// leader, which collects descriptors and passes them on.
//
// The leader listens on an abstract Unix socket: no file, and gone with its process. Both ends
// check that the other runs as the same user (SO_PEERCRED) and knows the job's secret (secret.h).

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/unique_fd.h"

namespace lockstep::shm {

struct MeetingOptions {
  int rank = 0;  // among the ranks of this host
  int size = 1;
  std::string secret;   // of the job
  std::string purpose;  // the group's name: a proof for one group is worth nothing in another
};

// Errors: IoError when a socket ends, TimeoutError at the deadline, UsageError when the other end
// is not what it should be. Threads: one at a time, except interrupt().
class Meeting {
 public:
  explicit Meeting(MeetingOptions options);

  // The leader: where the others must come, then waits for all of them.
  const std::string& address() const { return address_; }
  void accept_all(Deadline deadline);

  // Everybody else.
  void join(const std::string& address, Deadline deadline);

  // Collective: everybody gives a descriptor and gets those of all ranks, in their order.
  std::vector<UniqueFd> exchange(int fd, Deadline deadline);

  // Every call fails from now on. From any thread.
  void interrupt() noexcept;

 private:
  int prove(int fd, bool is_leader, Deadline deadline) const;  // returns the other end's rank
  void give_all(int to, const std::vector<UniqueFd>& fds, Deadline deadline) const;
  void adopt(size_t place, UniqueFd fd);
  void stop_if_interrupted() const;

  MeetingOptions options_;
  std::string address_;
  UniqueFd listener_;         // of the leader, until all have come
  mutable std::mutex mutex_;  // guards interrupted_ and the closing of descriptors against it
  bool interrupted_ = false;
  std::vector<UniqueFd> peers_;  // the leader: by rank (its own place empty); the others: one
};

}  // namespace lockstep::shm
