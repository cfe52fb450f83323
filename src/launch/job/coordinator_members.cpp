// Who takes part in the job: hosts that come, that bring their files and that leave.

#include <algorithm>
#include <signal.h>
#include <tuple>

#include <fmt/format.h>

#include "launch/job/coordinator.h"

namespace lockstep::launch {

namespace {

// What identifies a process: pids alone are the same in many containers.
auto identity_of(const MemberInfo& info) {
  return std::tie(info.host, info.address, info.pid, info.node_rank, info.master_port);
}

}  // namespace

std::string Coordinator::reason_to_refuse(const MemberInfo& info) const {
  std::string present;
  for (const auto& [id, member] : members_) {
    if (member.info.what != info.what) {
      return fmt::format(
          "it runs something else ({}) than the node on {} ({}); do two jobs share "
          "an endpoint and an id?",
          info.what, member.info.host, member.info.what);
    }
    if (info.node_rank >= 0 && member.info.node_rank == info.node_rank) {
      return fmt::format("node rank {} is taken by {} (pid {})", info.node_rank, member.info.host,
                         member.info.pid);
    }
    present += (present.empty() ? "" : ", ") + member.info.host;
  }
  if (info.node_rank >= options_.max_nodes) {
    return fmt::format("node rank {} is not in [0, {})", info.node_rank, options_.max_nodes);
  }
  if (members_.size() >= static_cast<size_t>(options_.max_nodes)) {
    return fmt::format("the job has its {} node{} already: {}", options_.max_nodes,
                       options_.max_nodes == 1 ? "" : "s", present);
  }
  return "";
}

void Coordinator::join(MemberId id, const MemberInfo& info, Time now) {
  if (is_over()) {
    tell_end(id);
    return;
  }
  if (members_.count(id) != 0) {
    lose(id, "it joined twice", now);
    return;
  }
  // The member gave up a connection whose end has not reached the head yet.
  const auto before = std::find_if(members_.begin(), members_.end(), [&](const auto& entry) {
    return identity_of(entry.second.info) == identity_of(info);
  });
  if (before != members_.end()) {
    lose(before->first, "it joins anew", now);
    if (is_over()) {
      tell_end(id);
      return;
    }
  }
  if (const std::string reason = reason_to_refuse(info); !reason.empty()) {
    say(fmt::format("refused the node on {} (pid {}): {}", info.host, info.pid, reason));
    actions_.send(id, {.kind = HeadSays::Refused, .code = 1, .text = reason});
    actions_.hang_up(id);
    return;
  }
  members_[id] = {.info = info, .sequence = next_sequence_++, .last_heard = now};
  if (!info.is_staging) {
    welcome(members_.at(id), now);
  }
  tick(now);
}

void Coordinator::welcome(const Member& member, Time now) {
  if (state_ == State::Running) {
    say(fmt::format("{} joins: all ranks are started anew with {} nodes", member.info.host,
                    members_.size()));
    stop(true, now);
  }
}

bool Coordinator::is_anyone_staging() const {
  return std::any_of(members_.begin(), members_.end(),
                     [](const auto& entry) { return entry.second.info.is_staging; });
}

// Ranks start when the files of all nodes are there: a node whose files came hours earlier would
// only wait for the others.
void Coordinator::take_staged(MemberId id, Member& member, const MemberMessage& message, Time now) {
  member.info.is_staging = false;
  if (message.kind == MemberSays::Staged) {
    welcome(member, now);
    tick(now);
  } else if (state_ == State::Gathering) {
    end({fmt::format("{}: {}\n", options_.name, message.text), message.status.shell_code()});
  } else {  // the others run without it
    actions_.send(id, {.kind = HeadSays::Refused, .code = 1, .text = message.text});
    lose(id, message.text, now);
  }
}

// SIGTERM on one node of an elastic job: a scheduler takes that node away, not the job.
bool Coordinator::may_leave(const Member& member, int signal) const {
  return signal == SIGTERM && is_elastic() && !member.info.is_head && state_ == State::Running &&
         members_.size() > static_cast<size_t>(options_.min_nodes);
}

void Coordinator::let_go(MemberId id, int signal, Time now) {
  const std::string why = fmt::format("it was sent {}", base::signal_name(signal));
  actions_.send(id, {.kind = HeadSays::End,
                     .generation = generation_,
                     .code = 128 + signal,
                     .text = fmt::format("{}: this node leaves the job: {}", options_.name, why)});
  lose(id, why, now);
}

// Ranks follow the nodes: those with a fixed place there, then as in the last generation, then the
// head, then as they came.
std::vector<MemberId> Coordinator::order_members() const {
  std::vector<MemberId> ids;
  for (const auto& [id, member] : members_) {
    ids.push_back(id);
  }
  const auto key = [this](MemberId id) {
    const Member& member = members_.at(id);
    const auto last = [](int place) { return place < 0 ? INT32_MAX : place; };
    return std::tuple(last(member.info.node_rank), last(member.order), !member.info.is_head,
                      member.sequence);
  };
  std::sort(ids.begin(), ids.end(), [&](MemberId a, MemberId b) { return key(a) < key(b); });
  return ids;
}

}  // namespace lockstep::launch
