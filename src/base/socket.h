#pragma once

// TCP sockets that wait with deadlines, and the one interface to listen on.

#include <cstdint>
#include <string>

#include "base/deadline.h"
#include "base/unique_fd.h"

namespace lockstep::base {

// The silence that makes a peer lost where nobody asked for another: noticed within three seconds.
inline constexpr auto kDefaultLostAfter = std::chrono::milliseconds(2500);

// A numeric address and a port: "10.0.1.10:29400", "[::1]:29400".
struct Endpoint {
  std::string host;  // numeric or a name
  uint16_t port = 0;

  std::string text() const;

  // "host:port", "[v6]:port". Throws UsageError that names `what` (say, a flag or variable).
  static Endpoint parse(const std::string& text, const std::string& what);
};

// A connected stream. All operations throw IoError when the peer is gone and TimeoutError at the
// deadline. Threads: one sender and one receiver at a time.
class Socket {
 public:
  Socket() = default;
  explicit Socket(UniqueFd fd) : fd_(std::move(fd)) {}

  // Tries every address of the name; retries while the peer refuses, until the deadline (a server
  // that is about to start is an ordinary thing at the start of a job).
  static Socket connect(const Endpoint& peer, Deadline deadline);

  // The same where a server has been before. If its host refuses now, nobody listens there any
  // more: throws PeerLostError at once.
  static Socket connect_again(const Endpoint& peer, Deadline deadline);

  void send(const void* bytes, size_t size, Deadline deadline);
  // As send(), but at the deadline returns how much of it went out.
  size_t send_until(const void* bytes, size_t size, Deadline deadline);
  void receive(void* bytes, size_t size, Deadline deadline);

  // The numeric address of this end: the interface by which the peer is reached.
  std::string local_host() const;
  std::string peer_host() const;  // and of the other end
  std::string peer_text() const;

  // Lets the kernel end the connection, also an idle one, when nothing comes from a vanished host
  // or through a cut link for this long and half a second: our own clocks see the silence first.
  void watch_liveness(std::chrono::nanoseconds lost_after);

  // Wakes every thread that waits on this socket; both directions end.
  void shutdown() noexcept;

  int fd() const { return fd_.get(); }
  explicit operator bool() const { return static_cast<bool>(fd_); }

 private:
  UniqueFd fd_;
};

// A listening socket on one address. Port 0: the kernel chooses, endpoint() tells.
class Listener {
 public:
  // Throws IoError ("address already in use", ...) with the endpoint in it.
  explicit Listener(const Endpoint& local);

  const Endpoint& endpoint() const { return endpoint_; }
  int fd() const { return fd_.get(); }

  // One connection, non-blocking; an empty Socket if none is waiting.
  Socket accept();

 private:
  UniqueFd fd_;
  Endpoint endpoint_;
};

}  // namespace lockstep::base
