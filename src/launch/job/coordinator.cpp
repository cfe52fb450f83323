#include "launch/job/coordinator.h"

#include <algorithm>
#include <cerrno>
#include <signal.h>
#include <utility>

#include <fmt/format.h>

namespace lockstep::launch {

namespace {

constexpr int kNotStarted = 1;  // exit code if the nodes never came together

}  // namespace

Coordinator::Coordinator(CoordinatorOptions options, CoordinatorActions actions, Time now)
    : options_(std::move(options)), actions_(std::move(actions)), last_tick_(now), next_beat_(now) {
  gather(now);
}

void Coordinator::gather(Time now) {
  state_ = State::Gathering;
  gather_by_ = now + options_.join_timeout;
  last_call_.reset();
}

void Coordinator::hear(MemberId id, const MemberMessage& message, Time now) {
  if (message.kind == MemberSays::Join) {
    join(id, message.info, now);
    return;
  }
  const auto found = members_.find(id);
  if (found == members_.end() || is_over()) {
    return;  // it was refused or given up: its messages do not count any more
  }
  if (std::exchange(found->second.is_suspect, false)) {
    say(who(found->second) + " is back");
  }
  found->second.last_heard = now;
  if (message.kind == MemberSays::Signal && may_leave(found->second, message.signal)) {
    let_go(id, message.signal, now);
  } else if (message.kind == MemberSays::Signal) {
    signal(message.signal, now);
  } else if (message.kind == MemberSays::Staged || message.kind == MemberSays::CannotStage) {
    take_staged(id, found->second, message, now);
  } else if (message.kind != MemberSays::Beat && message.generation == generation_) {
    take(id, found->second, message, now);
  }
}

void Coordinator::start(Time now) {
  ++generation_;
  ranks_.clear();
  culprit_by_.reset();
  cause_ = {};
  was_cut_short_ = false;
  stop_asked_.reset();
  const std::vector<MemberId> order = order_members();
  Assignment next{.generation = generation_,
                  .restart_count = restarts_,
                  .num_nodes = 0,
                  .world_size = 0,
                  .store = options_.store,
                  .run = options_.run};
  const MemberInfo& first = members_.at(order.front()).info;
  next.master_addr = first.address;
  next.master_port = first.master_port;
  for (size_t i = 0; i < order.size(); ++i) {
    Member& member = members_.at(order[i]);
    member.order = static_cast<int>(i);
    member.place = next;
    for (int node = 0; node < member.info.num_nodes; ++node, ++next.first_node) {
      for (int local = 0; local < member.info.procs_per_node; ++local, ++next.first_rank) {
        ranks_.push_back({.rank = next.first_rank,
                          .node = next.first_node,
                          .local_rank = local,
                          .host = members_.size() > 1 ? member.info.host : ""});
      }
    }
  }
  state_ = State::Running;
  actions_.begin_generation(generation_);
  for (const MemberId id : order) {
    Member& member = members_.at(id);
    member.place.num_nodes = next.first_node;
    member.place.world_size = next.first_rank;
    member.is_idle = false;
    member.last_heard = now;
    actions_.send(id,
                  {.kind = HeadSays::Start, .generation = generation_, .assignment = member.place});
  }
}

void Coordinator::take(MemberId id, Member& member, const MemberMessage& message, Time now) {
  if (message.kind == MemberSays::Idle) {
    member.is_idle = true;
    settle(now);
    return;
  }
  if (message.kind == MemberSays::Failed) {
    break_off(members_.size() > 1 ? fmt::format("{}: {}", who(member), message.text) : message.text,
              message.status.shell_code());
    fail(false, now, message.rank);
    return;
  }
  if (message.rank < 0 || message.rank >= static_cast<int>(ranks_.size())) {
    lose(id, fmt::format("it speaks of rank {}, which is not in the job", message.rank), now);
    return;
  }
  ranks_[static_cast<size_t>(message.rank)].pid = message.pid;
  if (message.kind == MemberSays::CannotStart && state_ == State::Running) {
    const int error = message.status.code;
    cause_.cannot_start = cannot_start_text(options_.program, error);
    cause_.cannot_start_code = error == ENOENT ? 127 : 126;
    state_ = State::Stopping;
    start_anew_ = false;
    tell_all(HeadSays::Kill);
  } else if (message.kind == MemberSays::Ended) {
    take_end(message, now);
  }
}

void Coordinator::stop(bool start_anew, Time now, int signal) {
  state_ = State::Stopping;
  start_anew_ = start_anew;
  tell_all(HeadSays::Stop, signal);
  settle(now);
}

void Coordinator::abandon(const std::string& why, Time now) {
  if (state_ == State::Gathering) {
    end({fmt::format("{}: {}\n", options_.name, why), kNotStarted});
  } else if (state_ == State::Running) {
    break_off(why, 1);
    stop(false, now);
  } else if (state_ == State::Stopping && start_anew_) {
    start_anew_ = false;
    cause_ = {.broken = why, .broken_code = 1};
  }
}

void Coordinator::signal(int signal, Time now) {
  if (is_over()) {
    return;
  }
  if (signal == SIGUSR1 && !options_.usr1_stops) {
    actions_.ask_ranks("checkpoint");
    tell_all(HeadSays::Checkpoint);
    return;
  }
  tell_all(HeadSays::Hurry);
  if (state_ == State::Stopping && start_anew_) {  // otherwise the job would have gone on
    start_anew_ = false;
    cause_ = {.signal = signal};
    say(base::signal_name(signal) + ": the ranks end and are not started anew");
    return;
  }
  if (state_ == State::Stopping) {
    if (stop_asked_) {  // they were asked; now they are told
      stop_asked_.reset();
      stop(false, now, signal);
    } else if (signal == SIGINT) {
      was_cut_short_ = true;
      tell_all(HeadSays::Kill);
    }
    return;
  }
  cause_ = {.signal = signal};
  if (state_ == State::Gathering) {
    end(make_report(options_.name, ranks_, told_cause()));
    return;
  }
  const bool is_polite = signal == SIGTERM && actions_.ask_ranks("stop") > 0;
  say(fmt::format("{}: {} {} ranks; they have {} to {}{}", base::signal_name(signal),
                  is_polite ? "asking" : "stopping", ranks_.size(),
                  base::to_text(options_.stop_grace),
                  is_polite ? "save their state and end" : "end",
                  signal == SIGINT ? " (Ctrl-C again kills them now)" : ""));
  if (is_polite) {
    stop_asked_ = now + options_.stop_grace;
    start_anew_ = false;
    state_ = State::Stopping;
  } else {
    stop(false, now, signal);
  }
}

void Coordinator::settle(Time now) {
  const bool is_idle = std::all_of(members_.begin(), members_.end(),
                                   [](const auto& entry) { return entry.second.is_idle; });
  if (!is_idle || (state_ != State::Running && state_ != State::Stopping)) {
    return;
  }
  if (state_ == State::Stopping && start_anew_) {
    gather(now);
    if (members_.size() >= static_cast<size_t>(options_.min_nodes)) {
      if (!is_anyone_staging()) {
        start(now);
      }
    } else {
      say(fmt::format("waiting up to {} for {} more node(s)", base::to_text(options_.join_timeout),
                      static_cast<size_t>(options_.min_nodes) - members_.size()));
    }
    return;
  }
  end(make_report(options_.name, ranks_, told_cause()));
}

StopCause Coordinator::told_cause() const {
  StopCause cause = cause_;
  cause.grace = options_.stop_grace;
  cause.was_cut_short = was_cut_short_;
  return cause;
}

void Coordinator::end(Report report) {
  state_ = State::Ended;
  report_ = std::move(report);
  for (const auto& [id, member] : members_) {
    tell_end(id);
  }
}

void Coordinator::tell_end(MemberId id) {
  // The first line is enough for members other than the head.
  actions_.send(id, {.kind = HeadSays::End,
                     .generation = generation_,
                     .code = report_.exit_code,
                     .text = report_.text.substr(0, report_.text.find('\n'))});
  actions_.hang_up(id);
}

void Coordinator::notice_silence(Time now) {
  std::vector<MemberId> silent;
  for (auto& [id, member] : members_) {
    const auto silence = now - member.last_heard;
    if (member.info.is_head ||
        silence <= std::min<Time::duration>(kSuspectAfter, options_.lost_after)) {
      continue;
    }
    if (silence > options_.lost_after) {
      silent.push_back(id);
    } else if (!member.is_suspect) {
      member.is_suspect = true;
      say(fmt::format("{} has not been heard of for {}; it is lost after {}", who(member),
                      base::to_text(kSuspectAfter), base::to_text(options_.lost_after)));
    }
  }
  for (const MemberId id : silent) {
    lose(id, fmt::format("not heard of for {}", base::to_text(options_.lost_after)), now);
  }
}

void Coordinator::tick(Time now) {
  if (is_over()) {
    return;
  }
  if (const auto slept = now - last_tick_; slept > kOwnSleep) {
    for (auto& [id, member] : members_) {
      member.last_heard += slept;
    }
  }
  last_tick_ = now;
  if (now >= next_beat_) {
    next_beat_ = now + kBeatInterval;
    tell_all(HeadSays::Beat);
  }
  notice_silence(now);
  if (state_ == State::Running && culprit_by_ && now >= *culprit_by_) {
    fail(false, now);
  }
  if (stop_asked_ && now >= *stop_asked_) {
    stop_asked_.reset();
    say("the ranks that were asked to end still run: stopping them");
    stop(false, now, SIGTERM);
  }
  if (state_ != State::Gathering) {
    return;
  }
  const size_t present = members_.size();
  if (present < static_cast<size_t>(options_.min_nodes)) {
    last_call_.reset();  // a member may have left
  } else if (!last_call_) {
    last_call_ = now + options_.last_call;
  }
  const bool is_complete =
      present >= static_cast<size_t>(options_.max_nodes) || (last_call_ && now >= *last_call_);
  if (is_complete && is_anyone_staging()) {
    return;  // the member whose files come last starts it
  }
  if (is_complete) {
    start(now);
  } else if (now >= gather_by_ && !last_call_) {
    std::string names;
    for (const auto& [id, member] : members_) {
      names += (names.empty() ? "" : ", ") + member.info.host;
    }
    end({fmt::format("{}: only {} of {} nodes came together within {}: {}\n", options_.name,
                     present, options_.min_nodes, base::to_text(options_.join_timeout),
                     names.empty() ? "none" : names),
         kNotStarted});
  }
}

void Coordinator::say(const std::string& sentence) const {
  actions_.say(fmt::format("{}: {}\n", options_.name, sentence));
}

base::Deadline Coordinator::next_tick() const {
  if (is_over()) {
    return base::Deadline::never();
  }
  base::Deadline next = base::Deadline::never();
  if (options_.max_nodes > 1) {
    next = base::Deadline::at(next_beat_);
  }
  if (stop_asked_) {
    next = next.earlier(base::Deadline::at(*stop_asked_));
  }
  if (state_ == State::Running && culprit_by_) {
    next = next.earlier(base::Deadline::at(*culprit_by_));
  }
  const bool waits_for_files = last_call_ && is_anyone_staging();
  if (state_ == State::Gathering && !waits_for_files) {
    next = next.earlier(base::Deadline::at(last_call_.value_or(gather_by_)));
  }
  return next;
}

void Coordinator::tell_all(HeadSays kind, int signal) {
  for (const auto& [id, member] : members_) {
    actions_.send(id, {.kind = kind, .generation = generation_, .signal = signal});
  }
}

std::string Coordinator::who(const Member& member) const {
  return fmt::format("node {} ({}, pid {})", std::max(0, member.place.first_node), member.info.host,
                     member.info.pid);
}

}  // namespace lockstep::launch
