#pragma once

// Who is in a group, and whether it still works. Every backend of more than one rank has one: it is
// where a death is heard of, where a late rank is found out, and where threads wait for either or
// for success.

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "base/deadline.h"
#include "base/store/store_client.h"
#include "comm/backends/backend.h"

namespace lockstep::comm {

// Why a group is unusable.
struct Failure {
  enum class Kind : char { PeerLost = 'P', Timeout = 'T', Desync = 'D' };
  Kind kind = Kind::PeerLost;
  std::string reason;

  // Throws the error type of `kind`: "all_reduce #12 (...): rank 3 (host a, pid 12) is gone ...".
  [[noreturn]] void raise(const std::string& call) const;
};

inline constexpr const char* kWorldName = "world";  // of the group that init() makes

struct MembershipOptions {
  Store store;
  std::string name;  // of the group
  int rank = 0;
  int size = 1;
  bool hosts_store = false;  // stay until the others have left: their store is in this process
};

// Threads: every method may be called concurrently.
class Membership {
 public:
  // Joins. Throws UsageError if this rank of a group of this name was joined before.
  Membership(MembershipOptions options, base::Deadline deadline);
  ~Membership() { leave(); }
  Membership(const Membership&) = delete;
  Membership& operator=(const Membership&) = delete;

  // Leaves: a goodbye, not a death; but while an exception unwinds this thread, the others are told
  // that. The owner calls it, once; what background threads still hold then is silent.
  void leave() noexcept;
  // The part of leave() that tells of an exception: the group has failed then.
  void tell_of_exception() noexcept;

  int rank() const { return options_.rank; }
  int size() const { return options_.size; }
  const Store& store() const { return options_.store; }
  // The prefix of this group's keys in the store.
  std::string key(const std::string& rest) const { return "group/" + options_.name + "/" + rest; }

  std::optional<Failure> failure() const;

  // Calls `listener` once the group has failed or a rank has declined (at once, if so), on the
  // thread that noticed it. One listener: the next replaces it, and once this returns the one
  // before is not running.
  void on_failure(std::function<void()> listener);

  // While the group is made: this rank cannot share memory. Tells the others, who must not wait for
  // it; the group goes on, another way. Returns the first reason that any rank gave: the cause, of
  // which the others' are echoes.
  std::string decline(const std::string& reason, base::Deadline deadline);

  // Notes that this rank has called `call` (shown to others that miss it). Throws if the group has
  // failed.
  void started(const Call& call);

  // Throws if the group has failed. Quick: for those who look again and again.
  void check(const Call& call) const;

  // Collective, over the store: every rank's text, in the order of ranks. `name` is used once.
  std::vector<std::string> gather(const std::string& name, const std::string& text,
                                  const Call& call);

  // The value of a key that another rank sets; ends early when the group fails.
  std::string await_key(const std::string& name, const Call& call);
  // The same while ranks may decline: throws IoError when one does, and at the deadline
  // TimeoutError that leaves the group as it is.
  std::string await_offer(const std::string& name, const Call& call);

  // With LOCKSTEP_CHECK_COLLECTIVES=1: compares the call with rank 0's of the same number; a
  // difference fails the group with DesyncError on every rank.
  void check_same_call(const Call& call);

  // Waits until `ready()`, which is called under the lock; false if the group fails or `limit`
  // passes first.
  template <typename Ready>
  bool wait(base::Deadline limit, Ready ready) {
    std::unique_lock lock(mutex_);
    const auto settled = [&] { return ready() || failure_.has_value(); };
    if (limit.is_never()) {
      changed_.wait(lock, settled);
    } else {
      changed_.wait_until(lock, limit.when(), settled);
    }
    return ready();
  }

  // Changes something that a ready() looks at, and wakes the waiters.
  template <typename Change>
  void update(Change change) {
    {
      const std::lock_guard lock(mutex_);
      change();
    }
    changed_.notify_all();
  }

  // Reads something that an update() changes.
  template <typename Look>
  auto read(Look look) const {
    const std::lock_guard lock(mutex_);
    return look();
  }

  // Rank `rank` was the first to give up, as far as this one knows: for the launcher, which sees
  // only who ended first, often one that failed because of it.
  void blame(int rank) noexcept;

  // This rank gives the group up with operations in flight: it tells the others, which would
  // otherwise wait for ever.
  void abandon(const std::string& reason);

  // Ranks called different operations, or one left while others wait for it: fails the group on
  // every rank, throws.
  [[noreturn]] void fail_call(const Call& call, const Failure& failure);

  // The deadline of `call` has passed: finds out who is missing, fails the group on every rank,
  // throws.
  [[noreturn]] void time_out(const Call& call);

  // The transport reported `error` for `call`. Mostly that is the echo of a death, of which the
  // store tells within moments: waits briefly for that better reason, then fails the group and
  // throws.
  [[noreturn]] void transport_failed(const Call& call, const std::string& error);

 private:
  struct Progress {  // what another rank answered when asked
    int64_t sequence = 0;
    std::string who;
    std::string last_call;
  };

  void fail(Failure failure);
  void fail_everywhere(const Failure& failure);
  void take_decline();
  std::optional<std::string> look_for(const std::string& name, const Call& call);
  void on_note(int from, const std::string& text);
  void take_note(int from, const nlohmann::json& note);
  std::string missing_ranks(const Call& call);
  void say_goodbye(base::StoreClient& client);

  MembershipOptions options_;
  std::string who_;
  bool checks_calls_ = false;
  std::atomic<int64_t> last_compared_{0};  // the number of the last call that was
  int exceptions_at_start_ = 0;

  std::atomic<bool> has_left_{false};
  std::atomic<bool> has_declined_{false};  // some rank has
  std::atomic<bool> has_failed_{false};    // failure_ is set: read without the lock by every call
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Failure> failure_;
  int64_t sequence_ = 0;
  std::optional<CallLabel> last_call_;
  std::map<int, Progress> answers_;

  std::mutex listener_mutex_;  // held while it runs
  std::function<void()> listener_;
};

}  // namespace lockstep::comm
