#pragma once

// The ranks of a group that share a host, met and connected: their arenas, their team, their
// messenger; and the translation of what stops a team into the errors of a group.

#include <atomic>
#include <memory>
#include <vector>

#include "comm/backends/backend.h"
#include "comm/membership.h"
#include "shm/fd_exchange.h"
#include "shm/messenger.h"
#include "shm/team.h"

namespace lockstep::comm {

shm::DataType to_shm(at::ScalarType type);
shm::Reduction to_shm(ReduceOp op);
shm::CallId to_shm(const CallLabel& label);
CallLabel label_of(const shm::CallId& call);

class LocalTeam {
 public:
  // Collective over `ranks` (of the group, in order; this one is among them). Throws IoError, which
  // says whose fault it is, if any rank of the group cannot share memory after all, and the group's
  // error if that fails meanwhile.
  LocalTeam(std::shared_ptr<Membership> membership, std::vector<int> ranks, const Call& connect);
  LocalTeam(const LocalTeam&) = delete;
  LocalTeam& operator=(const LocalTeam&) = delete;

  int rank() const { return rank_; }  // among `ranks`
  int size() const { return static_cast<int>(ranks_.size()); }
  const std::vector<int>& ranks() const { return ranks_; }
  const std::shared_ptr<shm::Messenger>& messenger() const { return messenger_; }

  // Carries out a task; whatever stops it becomes an error of `call`.
  void run(shm::Task task, const Call& call);
  void reduce_exchange(shm::Task task, int num_slices, shm::Exchange& exchange, const Call& call);

  bool is_bound(const void* data, size_t bytes) const { return team_->is_bound(data, bytes); }

  // Collective: memory that every rank of the team maps, at least `bytes`, as a uint8 tensor.
  // Throws IoError on every rank if one cannot have it; then a group of one team is as it was, and
  // a group of several has failed.
  at::Tensor allocate(int64_t bytes, const Call& call);
  // What every rank of the team has of memory from allocate(). Throws UsageError for other memory.
  std::vector<at::Tensor> views(const at::Tensor& memory) const;
  // The segment whose whole memory `tensor` is. Throws UsageError if there is none.
  static std::shared_ptr<shm::Segment> segment_of(const at::Tensor& tensor);
  // Collective: binds this process's segment, in fresh memory at its old address.
  void rebind(const at::Tensor& tensor, const Call& call);

  // The group has failed: everything that waits here, or will, ends. From any thread.
  void interrupt() noexcept;
  // This rank comes to no further operation.
  void depart() { team_->depart(); }

 private:
  // Ends the membership's calls of this object, also when the constructor throws.
  struct Listening {
    Membership& membership;
    ~Listening() { membership.on_failure({}); }
  };

  void meet(const Call& connect);
  void share_arenas(base::Deadline deadline);
  // `segment` is null, and `problem` says why, if this rank has none.
  void bind(const std::shared_ptr<shm::Segment>& segment, const std::string& problem,
            const Call& call);
  [[noreturn]] void refuse(const shm::Refused& refused, const Call& call);
  shm::Task barrier_task(const Call& call) const;
  template <typename Body>
  void guard(const Call& call, Body body);

  const std::shared_ptr<Membership> membership_;
  const std::vector<int> ranks_;
  int rank_ = 0;
  std::unique_ptr<shm::FdExchange> exchange_;
  std::shared_ptr<shm::Segment> arena_;
  std::vector<std::unique_ptr<shm::PeerSegment>> peer_arenas_;
  std::unique_ptr<shm::Team> team_;
  std::shared_ptr<shm::Messenger> messenger_;
  Listening listening_{*membership_};  // last: silent before anything that it uses is gone
};

}  // namespace lockstep::comm
