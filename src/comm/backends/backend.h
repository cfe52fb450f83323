#pragma once

// A Group is made of a Backend, one for each way of moving bytes. To add one, implement start().
// The checks of arguments, the order of operations and the waiting rules are done around it.

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <lockstep/comm/group.h>

#include "base/deadline.h"
#include "comm/work/call.h"

namespace lockstep::comm {

class Membership;

// What a group gives operations in flight when its last handle goes, and what it says if they take
// longer.
inline constexpr std::chrono::seconds kPendingTime{1};
inline constexpr const char* kDestroyedInFlight =
    "it destroyed the group with operations in flight";

// An operation in flight. See Work for what its methods promise.
class WorkState {
 public:
  virtual ~WorkState() = default;
  virtual bool wait(base::Deadline limit) = 0;  // false at the limit
  virtual bool done() const = 0;
  // Unlike Work's, it calls on the thread that finishes the operation, which must not be kept busy
  // and cannot take an exception.
  virtual void on_done(std::function<void(std::exception_ptr)> callback) = 0;
};

// For lockstep's own callbacks that are quick enough for that thread. Null means that it is done.
struct WorkAccess {
  static const std::shared_ptr<WorkState>& state(const Work& work) { return work.state_; }
};

class Backend {
 public:
  virtual ~Backend() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string name() const = 0;
  virtual std::chrono::milliseconds timeout() const = 0;
  virtual std::optional<Store> store() const = 0;

  // Throws what the group failed with, if it has. Returns null if the operation is done already.
  virtual std::shared_ptr<WorkState> start(Call call) = 0;

  // The blocking form. Unless overridden, it starts the call and waits.
  virtual void run(Call call);

  // Memory that the group can reduce where it lies; see Group. Unless overridden, it is ordinary.
  virtual at::Tensor allocate(int64_t bytes, const Call& call);
  virtual void rebind(const at::Tensor& tensor, const Call& call);

  // The ranks that share memory with this one, and their views; see Group. Unless overridden, none.
  virtual std::vector<int> local_ranks() const { return {rank()}; }
  virtual std::vector<at::Tensor> local_views(const at::Tensor& memory) const { return {memory}; }

  virtual Traffic traffic() const { return {}; }

  // The group fails on all its ranks, and this rank is the cause. In a group of one nobody is told.
  virtual void abandon(const std::string& /*why*/) {}

  // Throws what the group failed with, if it has. Quick: for those who look again and again.
  virtual void check(const Call& /*call*/) const {}

  // What a group made by split() inherits. A group of one is not asked.
  virtual GroupOptions options() const { return {}; }

  uint64_t id() const { return id_; }
  int64_t next_sequence() { return ++sequence_; }
  // The call that took the last number was refused before any other rank could hear of it.
  void take_back_sequence() { --sequence_; }
  int64_t next_split() { return ++num_splits_; }

 private:
  static uint64_t next_id();

  const uint64_t id_ = next_id();
  int64_t sequence_ = 0;
  int64_t num_splits_ = 0;
};

// The backend of a group of one, where every operation happens in place or is a copy.
std::shared_ptr<Backend> make_single_backend();

}  // namespace lockstep::comm
