// What a leader says to the user, and how it ends.

#include <fmt/format.h>

#include "launch/job/leader.h"
#include "launch/node/poll_set.h"

namespace lockstep::launch {

namespace {

constexpr auto kFarewellTime = std::chrono::seconds(2);      // for members to hear of the end
constexpr auto kLastWords = std::chrono::milliseconds(500);  // for a reader, once told to stop

}  // namespace

void Leader::say(const std::string& sentence) {
  say_lines(fmt::format("{}: {}\n", options_.name, sentence));
}

void Leader::say_lines(const std::string& lines) {
  voice_.add({.writer = base::kOwnWriter, .text = lines});
  voice_.write_some();
}

// Waits for a slow reader, as any program would, but not for long once the job was told to stop.
void Leader::speak_out() {
  base::Deadline limit = base::Deadline::never();
  while (voice_.backlog() > 0 && !limit.expired()) {
    read_signals();
    if (told_to_stop_ && limit.is_never()) {
      limit = base::Deadline::after(kLastWords);
    }
    base::Deadline next = limit;
    if (voice_.is_busy()) {
      next = next.earlier(
          base::Deadline::after(std::chrono::milliseconds(base::Console::kBusyPauseMs)));
    }
    PollSet polls;
    polls.add(voice_.is_busy() ? -1 : voice_.fd(), POLLOUT);
    polls.add(signals_.get());
    polls.wait(next);
    voice_.write_some();
  }
}

// Members hear of the end, and what hosts still write comes out.
void Leader::bid_farewell() {
  const base::Deadline farewell = base::Deadline::after(kFarewellTime);
  const auto is_done = [this] {
    return !head_->has_members() && (!starter_ || starter_->is_quiet());
  };
  while (!is_done() && !farewell.expired()) {
    PollSet polls;
    polls.add(head_->fd());
    base::Deadline next = farewell;
    if (starter_) {
      starter_->add_polls(polls.fds());
      next = next.earlier(starter_->next_timeout());
    }
    polls.wait(next);
    head_->serve();
    if (starter_) {
      starter_->serve(polls.fds());
    }
  }
}

int Leader::finish() {
  Report report;
  if (head_) {
    bid_farewell();
    report = head_->report();
  } else {
    report = {end_->text.empty() ? "" : end_->text + "\n", end_->code};
  }
  const bool is_quiet = options_.quiet_code != 0 && report.exit_code == options_.quiet_code;
  if (!report.text.empty() && !is_quiet) {
    say_lines(report.text);
  }
  if (options_.stdin_rank >= 0) {
    keyboard_.restore();  // an agent that was killed could not
  }
  speak_out();
  return report.exit_code;
}

}  // namespace lockstep::launch
