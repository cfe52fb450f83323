#include "base/store/store_greeting.h"

#include <sys/socket.h>

#include <lockstep/base/error.h>

namespace lockstep::base::store {
namespace {

void send(Socket& socket, const Message& message, Deadline deadline) {
  const std::string frame = encode(message);
  socket.send(frame.data(), frame.size(), deadline);
}

}  // namespace

Message receive_message(Socket& socket, std::string& unread, size_t max_bytes, Deadline deadline) {
  Message message;
  while (!decode(unread, max_bytes, message)) {
    char byte;
    socket.receive(&byte, 1, deadline);  // blocks; the rest is taken in one piece below
    unread.push_back(byte);
    char buffer[65536];
    const ssize_t n = ::recv(socket.fd(), buffer, sizeof buffer, MSG_DONTWAIT);
    if (n > 0) {
      unread.append(buffer, static_cast<size_t>(n));
    }
  }
  return message;
}

Welcome greet(Socket& socket, const Greeting& greeting, std::string& unread, Deadline deadline) {
  socket.watch_liveness(kDefaultLostAfter);
  const Nonce client_nonce = random_nonce();
  Writer hello;
  hello.u32(kMagic).u16(kVersion).bytes(client_nonce.data(), client_nonce.size());
  hello.text(greeting.scope);
  send(socket, {Kind::Hello, 0, hello.take()}, deadline);

  const auto refused = [&](const Message& message) {
    return UsageError("store: {} refused this process: {}", greeting.server.text(),
                      Reader(message.body).text());
  };
  Message message = receive_message(socket, unread, kMaxGreetingBytes, deadline);
  if (message.kind == Kind::Refused) {
    throw refused(message);
  }
  Nonce server_nonce{};
  Proof server_proof{};
  Reader in(message.body);
  in.bytes(server_nonce.data(), server_nonce.size());
  in.bytes(server_proof.data(), server_proof.size());
  const auto prove = [&](std::string_view side) {
    return make_proof(greeting.secret, side, greeting.scope, client_nonce, server_nonce);
  };
  if (message.kind != Kind::Challenge || !same_proof(server_proof, prove("server"))) {
    throw UsageError(
        "store: what listens on {} does not know this job's secret; is another job there, or does "
        "LOCKSTEP_JOB_SECRET differ between ranks?",
        greeting.server.text());
  }
  const Proof proof = prove("client");
  send(socket, {Kind::Answer, 0, Writer().bytes(proof.data(), proof.size()).take()}, deadline);
  message = receive_message(socket, unread, kMaxGreetingBytes, deadline);
  if (message.kind == Kind::Refused) {
    throw refused(message);
  }
  if (message.kind != Kind::Welcome) {
    throw FormatError("store: {} answered the greeting with kind {}", greeting.server.text(),
                      static_cast<int>(message.kind));
  }
  Welcome welcome;
  if (!message.body.empty()) {  // else the server is of before it said so
    Reader said(message.body);
    welcome.number = said.i64();
    welcome.lost_after = std::chrono::milliseconds(said.i64());
    socket.watch_liveness(welcome.lost_after);
  }
  return welcome;
}

}  // namespace lockstep::base::store
