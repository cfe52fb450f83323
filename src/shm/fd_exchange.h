#pragma once

// How the ranks of one host hand each other their memory: every rank has one socket to rank 0,
// which collects descriptors and passes them on.
//
// Rank 0 listens on an abstract Unix socket: no file, and gone with its process. Both ends
// check that the other runs as the same user (SO_PEERCRED) and knows the job's secret (secret.h).

#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include <lockstep/base/error.h>

#include "base/deadline.h"
#include "base/unique_fd.h"

namespace lockstep::shm {

struct FdExchangeOptions {
  int rank = 0;  // among the ranks of this host
  int size = 1;
  std::string secret;   // of the job
  std::string purpose;  // the group's name: a proof for one group is worth nothing in another
};

// What a rank brings to an exchange.
struct Offer {
  int fd = -1;
  std::string problem;  // not empty: it has nothing to give, and this is why
};

// What every rank hears when one could not give or take.
class Refused : public IoError {
 public:
  Refused(int rank, const std::string& problem)
      : IoError("rank {} of this host: {}", rank, problem), rank_(rank), problem_(problem) {}
  int rank() const { return rank_; }
  const std::string& problem() const { return problem_; }

 private:
  int rank_;
  std::string problem_;
};

// Errors: IoError when a socket ends, TimeoutError at the deadline, UsageError when the other end
// is not what it should be. Threads: one at a time, except interrupt().
class FdExchange {
 public:
  explicit FdExchange(FdExchangeOptions options);

  // Rank 0: where the others must come, then waits for all of them.
  const std::string& address() const { return address_; }
  void accept_all(base::Deadline deadline);

  // Everybody else.
  void join(const std::string& address, base::Deadline deadline);

  // Collective, and all or nothing: everybody gives a descriptor and is handed those of all other
  // ranks, in their order, each closed when `take` returns. If a rank has nothing to give, or its
  // `take` throws, every rank throws Refused; the exchange goes on after that.
  //
  // However many ranks there are, few descriptors are open or under way at a time: the kernel
  // limits both, the latter for all processes of a user together.
  using Take = std::function<void(int rank, const base::UniqueFd& fd)>;
  void exchange(const Offer& mine, const Take& take, base::Deadline deadline);

  // Every call fails from now on. From any thread.
  void interrupt() noexcept;

 private:
  int prove(int fd, bool is_rank_zero,
            base::Deadline deadline) const;  // returns the other end's rank
  struct Frame;
  struct Verdict;
  struct Batch;
  void lead(const Offer& mine, const Take& take, base::Deadline deadline);
  void follow(const Offer& mine, const Take& take, base::Deadline deadline);
  void collect(Batch& batch, const Offer& mine, Verdict& verdict, base::Deadline deadline);
  void distribute(const Batch& batch, const Take& take, Verdict& verdict, base::Deadline deadline);
  std::string take_all(int first, const std::vector<base::UniqueFd>& fds, const Take& take) const;
  void adopt(size_t place, base::UniqueFd fd);
  void stop_if_interrupted() const;

  FdExchangeOptions options_;
  std::string address_;
  base::UniqueFd listener_;   // of rank 0, until all have come
  mutable std::mutex mutex_;  // guards interrupted_ and the closing of descriptors against it
  bool interrupted_ = false;
  std::vector<base::UniqueFd> peers_;  // rank 0: by rank (its own place empty); the others: one
};

}  // namespace lockstep::shm
