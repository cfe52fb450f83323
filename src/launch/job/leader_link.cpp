// How a leader whose head is elsewhere finds it, keeps in touch with it, and loses it.

#include <unistd.h>

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

#include "launch/job/leader.h"

namespace lockstep::launch {

namespace {

constexpr auto kJoinPause = std::chrono::milliseconds(100);  // between two attempts
constexpr auto kJoinTime = std::chrono::seconds(2);          // for one of them
constexpr auto kMendTime = std::chrono::seconds(1);          // for one attempt to connect again

}  // namespace

void Leader::try_to_join() {
  if (ranks_ && !ranks_->is_gone()) {  // the head takes who joins for idle
    next_try_ = base::Deadline::after(kJoinPause);
    return;
  }
  const base::Endpoint& endpoint = rendezvous_.endpoints.at(next_endpoint_);
  next_endpoint_ = (next_endpoint_ + 1) % rendezvous_.endpoints.size();
  next_try_ = base::Deadline::after(kJoinPause);
  try {
    link_ = std::make_unique<HeadLink>(
        HeadLinkOptions{
            .head = endpoint, .job_id = rendezvous_.job_id, .secret = rendezvous_.secret},
        base::Deadline::after(kJoinTime));
    next_try_ = base::Deadline::never();
    next_beat_ = base::Deadline::after(kBeatInterval);
    tell({.kind = MemberSays::Join, .info = describe()});
    if (stage_failure_) {
      tell(*stage_failure_);
    }
    return;
  } catch (const UsageError& error) {  // another job is there, or the secret is another
    if (rendezvous_.endpoints.size() == 1) {
      give_up(error.what());
      return;
    }
    last_refusal_ = error.what();
  } catch (const Error& error) {  // nobody is there yet
    last_refusal_ = error.what();
  }
  if (join_by_.expired()) {
    give_up(fmt::format("{}the head of the job did not answer within {}: {}",
                        stage_failure_ ? stage_failure_->text + "; and " : "",
                        base::to_text(options_.rendezvous.join_timeout), last_refusal_));
  }
}

void Leader::give_up(const std::string& why) {
  next_try_ = base::Deadline::never();
  end_ = HeadMessage{
      .kind = HeadSays::End, .code = 1, .text = fmt::format("{}: {}", options_.name, why)};
}

void Leader::read_head() {
  try {
    for (const HeadMessage& message : link_->receive()) {
      obey(message);
    }
  } catch (const Error& error) {
    lose_head(error.what());
  }
}

void Leader::lose_starter() {
  char byte = 0;
  if (::read(options_.life_fd, &byte, 1) == 0) {
    link_.reset();  // the head was there too
    if (ranks_ && !ranks_->is_gone()) {
      ranks_->kill_now();
    }
    give_up("the host that started this node is gone; its ranks end");
  }
}

void Leader::beat() {
  next_beat_ = base::Deadline::never();
  if (!link_ || end_) {
    return;
  }
  next_beat_ = base::Deadline::after(kBeatInterval);
  const auto now = base::Clock::now();
  const bool was_asleep = now - last_turn_ > kOwnSleep;
  const auto silence = now - link_->last_heard();
  if (!was_asleep && silence > link_->lost_after()) {
    lose_head(fmt::format("not heard of for {}", base::to_text(link_->lost_after())));
    return;
  }
  if (!was_asleep && silence > kSuspectAfter) {
    link_->break_off();  // when the link is back TCP may not try it again for as long as it was cut
  }
  if (link_->is_broken()) {
    mend_link();
  } else {
    tell({.kind = MemberSays::Beat});
  }
}

void Leader::mend_link() {
  const base::Deadline lost = base::Deadline::at(link_->last_heard() + link_->lost_after());
  try {
    link_->resume(base::Deadline::after(kMendTime).earlier(lost));
    log::info("run", "there is a new connection to the head of the job");
  } catch (const UsageError& error) {
    lose_head(error.what());
    return;
  } catch (const PeerLostError& error) {
    // A process that is killed before it has read everything ends its connections by a reset, as a
    // link that fails may. What listened for the job's whole life and does not now has ended.
    lose_head(error.what());
    return;
  } catch (const Error& error) {  // not yet
    log::debug("run", "the head of the job cannot be reached: {}", error.what());
  }
  next_beat_ = base::Deadline::after(kBeatInterval);
}

bool Leader::may_come_back() const {
  return options_.max_restarts > 0 || options_.min_nodes < options_.max_nodes;
}

void Leader::lose_head(const std::string& why) {
  link_.reset();
  if (end_) {
    return;  // it has hung up after its last message
  }
  if (ranks_ && !ranks_->is_gone()) {
    ranks_->kill_now();
  }
  if (may_come_back()) {
    say(
        fmt::format("the head of the job is lost: {}; this node's ranks end, and it tries to join "
                    "again for {}",
                    why, base::to_text(options_.rendezvous.join_timeout)));
    join_by_ = base::Deadline::after(options_.rendezvous.join_timeout);
    next_try_ = base::Deadline::after(kJoinPause);
  } else {
    give_up(fmt::format("the head of the job is lost: {}; this node's ranks end", why));
  }
}

}  // namespace lockstep::launch
