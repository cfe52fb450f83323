#include "launch/job/head_link.h"

#include <cerrno>
#include <poll.h>
#include <sys/socket.h>

#include <lockstep/base/error.h>

#include "base/store/store_greeting.h"

namespace lockstep::launch {

namespace {

constexpr size_t kMaxMessageBytes = 16u << 20;

}  // namespace

HeadLink::HeadLink(const HeadLinkOptions& options, base::Deadline deadline)
    : options_(options),
      socket_(base::Socket::connect(options.head, deadline)),
      last_heard_(base::Clock::now()) {
  const base::store::Welcome welcome = base::store::greet(
      socket_, {options.head, base::store::agent_scope(options.job_id), options.secret}, unread_,
      deadline);
  number_ = welcome.number;
  lost_after_ = welcome.lost_after;
  // The same process, so the same address: while the link is cut a name server, too, may be out of
  // reach, and looking for it takes longer than all deadlines here.
  if (const std::string address = socket_.peer_host(); !address.empty()) {
    options_.head.host = address;
  }
}

short HeadLink::events() const {
  return static_cast<short>(unsent_.empty() ? POLLIN : POLLIN | POLLOUT);
}

void HeadLink::send(const MemberMessage& message) {
  const std::string frame = base::store::encode(
      {base::store::Kind::Agent, 0, base::store::Writer().text(message.to_json()).take()});
  session_.keep(frame);
  unsent_ += frame;
  flush();
}

void HeadLink::flush() {
  while (!unsent_.empty() && !is_broken()) {
    const ssize_t n =
        ::send(socket_.fd(), unsent_.data(), unsent_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n >= 0) {
      unsent_.erase(0, static_cast<size_t>(n));
    } else if (errno != EINTR) {
      // EPIPE: the head has hung up, which receive() sees. A reset is told once, to us or to it.
      is_cut_ |= errno != EAGAIN && errno != EWOULDBLOCK && errno != EPIPE;
      return;
    }
  }
  if (is_broken()) {
    unsent_.clear();  // store::Session keeps it
  }
}

void HeadLink::break_off() {
  // Without a goodbye: the head must not take what still arrives of this connection, its orderly
  // end above all, for this member's.
  const linger at_once{.l_onoff = 1, .l_linger = 0};
  ::setsockopt(socket_.fd(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  socket_ = base::Socket();
  is_cut_ = false;
  unread_.clear();
  unsent_.clear();
}

void HeadLink::resume(base::Deadline deadline) {
  base::Socket socket = base::Socket::connect_again(options_.head, deadline);
  std::string unread;
  base::store::greet(socket,
                     {options_.head, base::store::agent_scope(options_.job_id), options_.secret},
                     unread, deadline);
  const std::string request =
      base::store::encode({base::store::Kind::Resume, 0,
                           base::store::Writer().i64(number_).i64(session_.num_received()).take()});
  socket.send(request.data(), request.size(), deadline);
  const base::store::Message answer =
      base::store::receive_message(socket, unread, kMaxMessageBytes, deadline);
  base::store::Reader in(answer.body);
  if (answer.kind == base::store::Kind::Refused) {
    throw UsageError("{} refused this node: {}", options_.head.text(), in.text());
  }
  if (answer.kind != base::store::Kind::Resumed) {
    throw FormatError("the head answered with a message of kind {}", static_cast<int>(answer.kind));
  }
  session_.confirm(in.i64());
  socket_ = std::move(socket);
  unread_ = std::move(unread);
  unsent_ = session_.unconfirmed();
  last_heard_ = base::Clock::now();
  flush();
}

void HeadLink::take(const base::store::Message& message, std::vector<HeadMessage>& messages) {
  base::store::Reader in(message.body);
  if (message.kind == base::store::Kind::Received) {
    session_.confirm(in.i64());
    return;
  }
  messages.push_back(HeadMessage::from_json(in.text()));
  if (session_.take(message.body.size())) {
    unsent_ += base::store::encode({base::store::Kind::Received, 0,
                                    base::store::Writer().i64(session_.num_received()).take()});
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
      is_cut_ = is_cut_ || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK);
      is_closed = n == 0 && !is_cut_;
      break;
    }
    unread_.append(buffer, static_cast<size_t>(n));
    last_heard_ = base::Clock::now();
  }
  for (base::store::Message message; base::store::decode(unread_, kMaxMessageBytes, message);) {
    take(message, messages);
  }
  if (is_closed && messages.empty()) {
    throw IoError("the connection ended");
  }
  flush();
  if (is_cut_) {
    break_off();
  }
  return messages;
}

}  // namespace lockstep::launch
