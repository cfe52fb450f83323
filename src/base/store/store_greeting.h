#pragma once

// The client's half of the store's greeting (docs/formats/store.md), for ranks and agents alike.

#include <chrono>
#include <string>

#include "base/deadline.h"
#include "base/socket.h"
#include "base/store/store_protocol.h"

namespace lockstep::base::store {

struct Greeting {
  Endpoint server;
  std::string scope;   // rank_scope(), agent_scope(), or a plain job id where nobody restarts
  std::string secret;  // of the job
};

// Receives until a whole message is there. What came after it stays in `unread`.
Message receive_message(Socket& socket, std::string& unread, size_t max_bytes, Deadline deadline);

// What the server says to whom it lets in.
struct Welcome {
  int64_t number = 0;                                       // of this connection
  std::chrono::nanoseconds lost_after = kDefaultLostAfter;  // of silence
};

// Proves both sides to each other, and lets the kernel watch the connection as long as the server
// says. Throws UsageError if the server refuses, or if it is not this
// job's; IoError and TimeoutError as Socket does.
Welcome greet(Socket& socket, const Greeting& greeting, std::string& unread, Deadline deadline);

}  // namespace lockstep::base::store
