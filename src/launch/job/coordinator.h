#pragma once

// Decides for the head who takes part, when the ranks start, what a failure leads to and when the
// job is over. It has no sockets and no clock of its own, so that every course of events can be
// tested.
//
//   gathering -> running -> stopping -> gathering (restart) or ended
//
// A rank that fails, a host that is lost or one that comes to an elastic job end the running
// generation: all ranks are stopped, and once no process of it is left on any host the next one
// starts, if the options allow it.

#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/socket.h"
#include "launch/job/job_message.h"
#include "launch/job/report.h"

namespace lockstep::launch {

// A head that was not run for longer than this (a suspended laptop, a machine out of memory) knows
// nothing of the others' silence in that time.
inline constexpr auto kOwnSleep = std::chrono::seconds(1);

using MemberId = uint64_t;

struct CoordinatorOptions {
  std::string name = "lockstep run";  // the first words of the report
  std::string program;                // named in messages
  int min_nodes = 1;                  // the least number of members to start with
  int max_nodes = 1;                  // the largest number of members
  int max_restarts = 0;
  bool usr1_stops = false;  // SIGUSR1 ends the job instead of asking for a checkpoint
  std::string store;        // endpoint of the job's store, told to the ranks
  std::string run;          // names this run among those of the same job id
  std::chrono::nanoseconds join_timeout = std::chrono::seconds(600);
  std::chrono::nanoseconds last_call = std::chrono::seconds(30);
  std::chrono::nanoseconds lost_after = base::kDefaultLostAfter;
  std::chrono::nanoseconds stop_grace = std::chrono::seconds(10);  // for ranks that were asked
};

// How the coordinator acts on what is outside it.
struct CoordinatorActions {
  std::function<void(MemberId, const HeadMessage&)> send;
  std::function<void(MemberId)> hang_up;  // once it has received what was sent to it
  std::function<void(int64_t generation)> begin_generation;
  // Asks the ranks that listen for requests ("checkpoint", "stop"), and returns how many listen.
  std::function<size_t(const std::string& request)> ask_ranks;
  std::function<void(const std::string& lines)> say;  // to the user, now
  std::function<std::optional<int>()> first_to_fail;  // the first rank to give up, if it is known
};

class Coordinator {
 public:
  using Time = base::Clock::time_point;

  Coordinator(CoordinatorOptions options, CoordinatorActions actions, Time now);

  void hear(MemberId member, const MemberMessage& message, Time now);
  void lose(MemberId member, const std::string& why, Time now);  // its connection has ended
  void signal(int signal, Time now);                             // which some member received
  void abandon(const std::string& why, Time now);  // the job cannot come together or go on

  // Sends beats, notices silence and enforces time limits. Call it when next_tick() has passed.
  void tick(Time now);
  base::Deadline next_tick() const;

  bool is_over() const { return state_ == State::Ended; }
  const Report& report() const { return report_; }
  int64_t generation() const { return generation_; }

 private:
  enum class State { Gathering, Running, Stopping, Ended };

  struct Member {
    MemberInfo info;
    int64_t sequence = 0;  // in which it joined
    int order = -1;        // its place in the last generation; -1: it took no part in it
    Assignment place;
    bool is_idle = true;      // no process of the generation is left there
    bool is_suspect = false;  // silent for long, but not yet for long enough to be lost
    Time last_heard{};
  };

  void join(MemberId id, const MemberInfo& info, Time now);
  std::string reason_to_refuse(const MemberInfo& info) const;
  void take_staged(MemberId id, Member& member, const MemberMessage& message, Time now);
  bool is_anyone_staging() const;
  void welcome(const Member& member, Time now);  // starts a running job again with it
  void take(MemberId id, Member& member, const MemberMessage& message, Time now);
  void take_end(const MemberMessage& message, Time now);
  bool may_leave(const Member& member, int signal) const;
  void let_go(MemberId id, int signal, Time now);
  bool has_failed() const;
  bool awaits_culprit(Time now);
  void fail(bool is_membership, Time now, int gone_rank = -1);
  std::vector<RankRecord> ranks_to_be_stopped(int gone_rank) const;
  void break_off(const std::string& why, int code);
  void stop(bool start_anew, Time now, int signal = 0);
  void gather(Time now);
  void start(Time now);
  void notice_silence(Time now);
  std::vector<MemberId> order_members() const;
  void settle(Time now);         // goes on if no process of the generation is left
  StopCause told_cause() const;  // including the grace that the report mentions
  void end(Report report);
  void tell_end(MemberId id);
  void tell_all(HeadSays kind, int signal = 0);
  void say(const std::string& sentence) const;
  std::string who(const Member& member) const;
  bool is_elastic() const { return options_.min_nodes < options_.max_nodes; }

  const CoordinatorOptions options_;
  const CoordinatorActions actions_;
  State state_ = State::Gathering;
  bool start_anew_ = false;  // the ranks start again once all are stopped
  int64_t generation_ = -1;
  int restarts_ = 0;
  int64_t next_sequence_ = 0;
  std::map<MemberId, Member> members_;
  std::vector<RankRecord> ranks_;
  StopCause cause_;
  bool was_cut_short_ = false;  // the ranks were killed without all of their grace
  Report report_;
  Time gather_by_{};                // by then min_nodes must have joined
  std::optional<Time> last_call_;   // then the ranks start without the missing members
  std::optional<Time> culprit_by_;  // until then the rank that failed first may end by itself
  std::optional<Time> stop_asked_;  // until then the ranks may end as they were asked to
  Time last_tick_{};
  Time next_beat_{};
};

inline constexpr auto kBeatInterval = std::chrono::milliseconds(250);
// Silence after which the other side is suspected to be lost, if it is not lost by then.
inline constexpr auto kSuspectAfter = base::kDefaultLostAfter;

}  // namespace lockstep::launch
