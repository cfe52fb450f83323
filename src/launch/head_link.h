#pragma once

// A member's connection to the head of its job.

#include <optional>
#include <string>
#include <vector>

#include "base/socket.h"
#include "launch/job_message.h"

namespace lockstep {

struct HeadLinkOptions {
  Endpoint head;
  std::string job_id;
  std::string secret;
};

// Lives in a process without threads.
class HeadLink {
 public:
  // Connects and proves both sides to each other. Throws IoError or TimeoutError if nobody answers,
  // UsageError if it is not this job's head or refuses.
  HeadLink(const HeadLinkOptions& options, Deadline deadline);

  int fd() const { return socket_.fd(); }
  void send(const MemberMessage& message);  // throws IoError if the head is gone

  // What has come, without waiting. Throws IoError once the head is gone and everything is read.
  std::vector<HeadMessage> receive();

  // The address of this host by which it reaches the head.
  std::string local_host() const { return socket_.local_host(); }
  Clock::time_point last_heard() const { return last_heard_; }

 private:
  Socket socket_;
  std::string unread_;
  Clock::time_point last_heard_;
};

}  // namespace lockstep
