#pragma once

// A member's conversation with the head of its job. A connection that breaks is replaced, and
// no message is lost or heard twice.

#include <optional>
#include <string>
#include <vector>

#include "base/socket.h"
#include "base/store/store_protocol.h"
#include "base/store/store_session.h"
#include "launch/job/job_message.h"

namespace lockstep::launch {

struct HeadLinkOptions {
  base::Endpoint head;
  std::string job_id;
  std::string secret;
};

// Lives in a process without threads.
class HeadLink {
 public:
  // Connects and proves both sides to each other. Throws IoError or TimeoutError if nobody answers,
  // UsageError if it is not this job's head or refuses.
  HeadLink(const HeadLinkOptions& options, base::Deadline deadline);

  // For the caller's poll loop: -1 while the connection is broken.
  int fd() const { return socket_.fd(); }
  short events() const;

  // Never waits: what cannot go now goes later.
  void send(const MemberMessage& message);

  // What has come, without waiting; sends what is left to send. Throws IoError once the head has
  // hung up and everything is read.
  std::vector<HeadMessage> receive();

  bool is_broken() const { return !socket_; }
  void break_off();  // for a connection through which nothing comes: a new one may work
  // Throws as the constructor does; UsageError if the head has given this member up, and
  // PeerLostError if its host is there and it is not.
  void resume(base::Deadline deadline);

  // The address of this host by which it reaches the head.
  std::string local_host() const { return socket_.local_host(); }
  base::Clock::time_point last_heard() const { return last_heard_; }
  std::chrono::nanoseconds lost_after() const {
    return lost_after_;
  }  // of silence: the head's word

 private:
  void flush();
  void take(const base::store::Message& message, std::vector<HeadMessage>& messages);

  HeadLinkOptions options_;
  base::Socket socket_;  // empty while the connection is broken
  std::string unread_;
  std::string unsent_;
  bool is_cut_ = false;  // sending has shown that the connection broke
  base::store::Session session_;
  int64_t number_ = 0;  // of the first connection
  std::chrono::nanoseconds lost_after_{};
  base::Clock::time_point last_heard_;
};

}  // namespace lockstep::launch
