#pragma once

// What one poll(2) waits for. Each entry is named by what add() returned for it:
//
//   PollSet polls;
//   const auto signals = polls.add(signals_.get());
//   polls.wait(deadline);
//   if (polls.is_ready(signals)) { ... }

#include <poll.h>
#include <vector>

#include "base/deadline.h"

namespace lockstep::launch {

class PollSet {
 public:
  enum class Entry : size_t {};

  // `fd` -1: there is nothing to wait for, and it is never ready.
  Entry add(int fd, short events = POLLIN) {
    fds_.push_back({fd, events, 0});
    return static_cast<Entry>(fds_.size() - 1);
  }

  // For objects that add entries of their own and look at them afterwards.
  std::vector<pollfd>& fds() { return fds_; }

  // False if a signal interrupted it.
  bool wait(base::Deadline deadline) {
    return ::poll(fds_.data(), fds_.size(), deadline.poll_ms()) >= 0;
  }

  bool is_ready(Entry entry) const { return fds_[static_cast<size_t>(entry)].revents != 0; }

 private:
  std::vector<pollfd> fds_;
};

}  // namespace lockstep::launch
