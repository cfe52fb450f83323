#pragma once

// What the processes of a job tell each other, one datagram each, over SOCK_SEQPACKET pairs.

#include <cstdint>
#include <optional>
#include <string>
#include <sys/types.h>

#include "base/process/process.h"
#include "launch/node/rank_end.h"

namespace lockstep::launch {

enum class MessageKind : int32_t {
  // upwards: worker -> agent, guardian -> agent -> leader
  Started,       // rank, pid
  CannotStart,   // rank, status.code: errno of exec
  Ended,         // rank, stamp_ns, end: the last lines and the error come from the agent
  Failed,        // the node cannot go on; text: why
  GuardianLost,  // pid, status
  // downwards: leader -> agent -> guardian
  Stop,        // status.signal to all, SIGKILL after the grace; 0: SIGTERM, for a rank has failed
  Kill,        // SIGKILL to all, now
  Checkpoint,  // SIGUSR1 to the workers that handle it
  Hurry,       // the user has ended the job; only the agent acts on it
};

struct Message {
  MessageKind kind = MessageKind::Failed;
  int rank = -1;
  pid_t pid = 0;
  base::ExitStatus status;  // of what is not the end of a rank
  std::string text;         // at most kMaxMessageText bytes; the rest is cut off
  int64_t stamp_ns = 0;     // CLOCK_MONOTONIC when the end was noticed
  RankEnd end;              // its texts are cut likewise; where the log files are is not sent
};

inline constexpr size_t kMaxMessageText = 64 * 1024;

struct Received {
  std::optional<Message> message;
  bool closed = false;  // the peer is gone and all of its messages have been read
  pid_t sender = 0;     // as seen here, if the socket has SO_PASSCRED: it crosses PID namespaces
};

// False if the peer is gone. Blocks only while the peer does not read.
bool send_message(int fd, const Message& message) noexcept;

// The next message, if there is one now.
Received receive_message(int fd);

}  // namespace lockstep::launch
