#pragma once

// What the backends on a LocalTeam share: who is in the group, operations in order, messages inside
// the host, memory, and the end.

#include <memory>

#include "comm/backends/backend.h"
#include "comm/backends/local_team.h"
#include "comm/backends/shm_message.h"
#include "comm/work/work_queue.h"

namespace lockstep::comm {

struct TeamOptions {
  std::shared_ptr<Membership> membership;
  GroupOptions group;  // what the user asked for
  std::unique_ptr<LocalTeam> team;
  std::chrono::milliseconds timeout = kDefaultTimeout;  // of operations
};

class TeamBackend : public Backend {
 public:
  int rank() const override;
  int size() const override;
  std::chrono::milliseconds timeout() const override { return options_.timeout; }
  std::optional<Store> store() const override;
  GroupOptions options() const override { return options_.group; }
  void abandon(const std::string& why) override;
  void check(const Call& call) const override;

  void run(Call call) override;
  at::Tensor allocate(int64_t bytes, const Call& call) override;
  void rebind(const at::Tensor& tensor, const Call& call) override;
  std::vector<int> local_ranks() const override { return team_.ranks(); }
  std::vector<at::Tensor> local_views(const at::Tensor& memory) const override {
    return team_.views(memory);
  }

 protected:
  // `execute` carries out one collective.
  TeamBackend(TeamOptions options, WorkQueue::Execute execute);

  // Every derived destructor calls it first: what is in flight uses the derived class.
  void end();

  // Checks that all ranks call the same; those of this host's team find that out by themselves.
  virtual void compare_calls(const Call& /*call*/) {}

  const TeamOptions options_;
  const std::shared_ptr<Membership> membership_;
  LocalTeam& team_;
  ShmMessages messages_;
  WorkQueue queue_;

 private:
  void begin_memory_change(const Call& call);
};

}  // namespace lockstep::comm
