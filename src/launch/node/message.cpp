#include "launch/node/message.h"

#include <cerrno>
#include <cstring>
#include <string_view>
#include <sys/socket.h>
#include <sys/uio.h>

#include <lockstep/base/error.h>

#include "base/unique_fd.h"

namespace lockstep::launch {

namespace {

// The fixed part on the wire; both ends are the same program on the same host.
struct Header {
  int32_t kind;
  int32_t rank;
  int32_t pid;
  int32_t code;
  int32_t signal;
  int32_t stopped;
  int64_t stamp_ns;
  int64_t text_bytes;  // of the text or the last lines, which the error follows
};

pid_t sender_of(msghdr& header) {
  for (cmsghdr* c = CMSG_FIRSTHDR(&header); c != nullptr; c = CMSG_NXTHDR(&header, c)) {
    if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_CREDENTIALS) {
      ucred credentials;
      std::memcpy(&credentials, CMSG_DATA(c), sizeof credentials);
      return credentials.pid;
    }
  }
  return 0;
}

Message decode(const Header& header, std::string_view texts) {
  Message message;
  message.kind = static_cast<MessageKind>(header.kind);
  message.rank = header.rank;
  message.pid = header.pid;
  message.stamp_ns = header.stamp_ns;
  const base::ExitStatus status{.code = header.code, .signal = header.signal};
  const std::string_view text = texts.substr(0, static_cast<size_t>(header.text_bytes));
  if (message.kind == MessageKind::Ended) {
    message.end = {.status = status,
                   .stopped = header.stopped != 0,
                   .last_lines = std::string(text),
                   .error = std::string(texts.substr(text.size()))};
  } else {
    message.status = status;
    message.text = text;
  }
  return message;
}

}  // namespace

bool send_message(int fd, const Message& message) noexcept {
  const bool is_end = message.kind == MessageKind::Ended;
  const base::ExitStatus& status = is_end ? message.end.status : message.status;
  const std::string_view text =
      std::string_view(is_end ? message.end.last_lines : message.text).substr(0, kMaxMessageText);
  const std::string_view error =
      std::string_view(message.end.error).substr(0, is_end ? kMaxMessageText : 0);
  Header header{static_cast<int32_t>(message.kind),
                message.rank,
                message.pid,
                status.code,
                status.signal,
                message.end.stopped ? 1 : 0,
                message.stamp_ns,
                static_cast<int64_t>(text.size())};
  iovec parts[3] = {{&header, sizeof header},
                    {const_cast<char*>(text.data()), text.size()},
                    {const_cast<char*>(error.data()), error.size()}};
  msghdr packet{};
  packet.msg_iov = parts;
  packet.msg_iovlen = 3;
  while (::sendmsg(fd, &packet, MSG_NOSIGNAL) < 0) {
    if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

Received receive_message(int fd) {
  Header header{};
  static char texts[2 * kMaxMessageText];
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(ucred))];
  iovec parts[2] = {{&header, sizeof header}, {texts, sizeof texts}};
  msghdr packet{};
  packet.msg_iov = parts;
  packet.msg_iovlen = 2;
  packet.msg_control = control;
  packet.msg_controllen = sizeof control;
  for (;;) {
    const ssize_t n = ::recvmsg(fd, &packet, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n == 0) {
      return {.closed = true};
    }
    if (n < 0) {
      // ECONNRESET says only that the peer left something unread; what it said is still to be read.
      if (errno == EINTR || errno == ECONNRESET) {
        continue;
      }
      if (errno == EAGAIN) {
        return {};
      }
      throw IoError("cannot read from a process of the job: {}", base::errno_text(errno));
    }
    LOCKSTEP_CHECK(static_cast<size_t>(n) >= sizeof header, "a message of {} bytes", n);
    return {.message = decode(header, {texts, static_cast<size_t>(n) - sizeof header}),
            .sender = sender_of(packet)};
  }
}

}  // namespace lockstep::launch
