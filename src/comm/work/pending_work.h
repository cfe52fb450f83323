#pragma once

// Operations that another part carries out and reports: Gloo, or the messenger.

#include <memory>
#include <string>
#include <vector>

#include "comm/backends/backend.h"

namespace lockstep::comm {

// Keeps what was reported and whom to call then. Under the membership's lock, so that a wait for
// the report ends with the group's failure too. A derived class says in wait() what the report
// means. Threads: finish() on any, the rest as WorkState.
class PendingWork : public WorkState, public std::enable_shared_from_this<PendingWork> {
 public:
  bool done() const override;
  void on_done(std::function<void(std::exception_ptr)> callback) override;

 protected:
  struct Report {
    bool is_finished = false;
    std::string error;  // empty: it went well
  };

  // `num_pending` counts the operations of the group in flight; guarded by `membership`.
  PendingWork(Call call, std::shared_ptr<Membership> membership, std::shared_ptr<int> num_pending)
      : call_(std::move(call)),
        membership_(std::move(membership)),
        num_pending_(std::move(num_pending)) {}

  void begin();  // it is in flight
  void finish(const std::string& error);
  void drop();  // there will be no report any more, because the group fails or has failed
  Report await_report(base::Deadline limit);  // or the deadline, or the group's failure

  const Call call_;
  const std::shared_ptr<Membership> membership_;

 private:
  std::exception_ptr outcome();  // what wait() does: null, or what it throws
  void call_on_failure(std::function<void(std::exception_ptr)> callback);

  const std::shared_ptr<int> num_pending_;
  Report report_;  // guarded by membership_, as the next two
  bool is_dropped_ = false;
  std::vector<std::function<void(std::exception_ptr)>> callbacks_;
};

}  // namespace lockstep::comm
