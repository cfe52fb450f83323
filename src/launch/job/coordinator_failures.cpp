// What the head makes of ranks, nodes and hosts that fail.

#include <algorithm>
#include <signal.h>

#include <fmt/format.h>

#include "launch/job/coordinator.h"

namespace lockstep::launch {

void Coordinator::take_end(const MemberMessage& message, Time now) {
  RankRecord& rank = ranks_[static_cast<size_t>(message.rank)];
  rank.end = message.end;
  rank.stamp_ns = (now - message.age).time_since_epoch().count();
  const bool has_failure = std::any_of(ranks_.begin(), ranks_.end(),
                                       [](const RankRecord& other) { return other.failed(); });
  if (has_failure && !awaits_culprit(now)) {
    fail(false, now);
  }
}

// A rank that gives up tells the others, who fail for that reason and often end before it does. It
// has a moment to end by itself: the report is about it, its exit code and its last words.
bool Coordinator::awaits_culprit(Time now) {
  constexpr auto kCulpritTime = std::chrono::seconds(2);
  const auto culprit = actions_.first_to_fail();
  if (state_ != State::Running || !culprit || *culprit < 0 ||
      *culprit >= static_cast<int>(ranks_.size())) {
    return false;
  }
  RankRecord& rank = ranks_[static_cast<size_t>(*culprit)];
  rank.was_first = true;
  if (!culprit_by_) {
    culprit_by_ = now + kCulpritTime;
  }
  return !rank.end && now < *culprit_by_;
}

// A rank, a node or a host has failed: what next? Elastic jobs lose hosts without losing a restart.
void Coordinator::fail(bool is_membership, Time now, int gone_rank) {
  if (state_ != State::Running) {
    return;
  }
  const bool is_free = is_membership && is_elastic();
  const bool start_anew = is_free || restarts_ < options_.max_restarts;
  if (start_anew && !is_free) {
    ++restarts_;
  }
  if (start_anew) {
    actions_.say(make_report(options_.name, ranks_to_be_stopped(gone_rank), told_cause()).text);
    say(is_free ? "restarting all ranks without it"
                : fmt::format("restarting all ranks (restart {} of {})", restarts_,
                              options_.max_restarts));
  }
  stop(start_anew, now);
}

// The ranks as they will be once they are stopped, for a report that is told before. Those of hosts
// that are lost, and of a node that is gone with all its ranks (`gone_rank` is one of them), are
// not there to be stopped.
std::vector<RankRecord> Coordinator::ranks_to_be_stopped(int gone_rank) const {
  std::vector<RankRecord> ranks = ranks_;
  const bool is_node_gone = gone_rank >= 0 && gone_rank < static_cast<int>(ranks.size());
  const int gone_node = is_node_gone ? ranks[static_cast<size_t>(gone_rank)].node : -1;
  for (RankRecord& rank : ranks) {
    const bool is_there = std::any_of(members_.begin(), members_.end(), [&](const auto& entry) {
      const Member& member = entry.second;
      return member.order >= 0 && rank.node >= member.place.first_node &&
             rank.node < member.place.first_node + member.info.num_nodes;
    });
    if (!rank.end && is_there && rank.node != gone_node) {
      rank.end = {.status = {.signal = SIGTERM}, .stopped = true};
    }
  }
  return ranks;
}

void Coordinator::break_off(const std::string& why, int code) {
  if (state_ == State::Running) {
    cause_.broken = why;
    cause_.broken_code = code == 0 ? 1 : code;
  }
}

void Coordinator::lose(MemberId id, const std::string& why, Time now) {
  const auto found = members_.find(id);
  if (found == members_.end() || is_over()) {
    return;
  }
  const Member member = found->second;
  members_.erase(found);
  actions_.hang_up(id);
  if (state_ == State::Running && member.order < 0) {
    say(fmt::format("{} left before it took part: {}", member.info.host, why));
  } else if (state_ == State::Running) {
    break_off(fmt::format("{} is lost: {}; its ranks are counted as dead", who(member), why), 1);
    fail(true, now);
  } else {
    if (state_ == State::Gathering) {
      say(fmt::format("{} left before the job began: {}", member.info.host, why));
    } else if (is_elastic() && !start_anew_ && has_failed()) {
      // A rank that fails because its peer's host is gone is often heard of before the silence of
      // that host is long enough.
      say(fmt::format("{} is lost: {}; restarting all ranks without it", who(member), why));
      start_anew_ = true;
    }
    settle(now);
  }
}

// The ranks are being stopped because one of them failed, and for no other reason.
bool Coordinator::has_failed() const {
  return cause_.signal == 0 && cause_.cannot_start.empty() && cause_.broken.empty();
}

}  // namespace lockstep::launch
