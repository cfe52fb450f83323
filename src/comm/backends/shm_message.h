#pragma once

// send and recv between ranks of one host.

#include <memory>

#include "comm/backends/backend.h"
#include "comm/backends/local_team.h"

namespace lockstep::comm {

class ShmMessages {
 public:
  ShmMessages(std::shared_ptr<Membership> membership, LocalTeam& team)
      : membership_(std::move(membership)), messenger_(team.messenger()) {}
  ~ShmMessages() { messenger_->stop(); }
  ShmMessages(const ShmMessages&) = delete;
  ShmMessages& operator=(const ShmMessages&) = delete;

  // Starts a Send or Recv; `local_peer` is the other end among the ranks of this host.
  std::shared_ptr<WorkState> start(Call call, int local_peer);

  // Waits until all messages have got through. Returns false at the limit, or if the group failed.
  bool drain(base::Deadline limit);

 private:
  const std::shared_ptr<Membership> membership_;
  const std::shared_ptr<shm::Messenger> messenger_;
  const std::shared_ptr<int> num_pending_ = std::make_shared<int>(0);  // guarded by membership_
};

}  // namespace lockstep::comm
