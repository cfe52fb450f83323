#include "launch/head_link.h"

#include <cerrno>
#include <sys/socket.h>

#include <lockstep/base/error.h>

#include "base/store_greeting.h"

namespace lockstep {

namespace {

constexpr size_t kMaxMessageBytes = 16u << 20;
constexpr auto kSendTime = std::chrono::seconds(3);

}  // namespace

HeadLink::HeadLink(const HeadLinkOptions& options, Deadline deadline)
    : socket_(Socket::connect(options.head, deadline)), last_heard_(Clock::now()) {
  socket_.watch_liveness();
  store::greet(socket_, {options.head, store::agent_scope(options.job_id), options.secret}, unread_,
               deadline);
}

void HeadLink::send(const MemberMessage& message) {
  const std::string frame =
      store::encode({store::Kind::Agent, 0, store::Writer().text(message.to_json()).take()});
  try {
    socket_.send(frame.data(), frame.size(), Deadline::after(kSendTime));
  } catch (const TimeoutError& error) {
    throw IoError("the head does not read: {}", error.what());
  }
}

std::vector<HeadMessage> HeadLink::receive() {
  std::vector<HeadMessage> messages;
  bool is_closed = false;
  char buffer[65536];
  for (;;) {
    const ssize_t n = ::recv(socket_.fd(), buffer, sizeof buffer, MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) {
      continue;
    }
    if (n <= 0) {
      is_closed = n == 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
      break;
    }
    unread_.append(buffer, static_cast<size_t>(n));
    last_heard_ = Clock::now();
  }
  for (store::Message message; store::decode(unread_, kMaxMessageBytes, message);) {
    messages.push_back(HeadMessage::from_json(store::Reader(message.body).text()));
  }
  if (is_closed && messages.empty()) {
    throw IoError("the connection ended");
  }
  return messages;
}

}  // namespace lockstep
