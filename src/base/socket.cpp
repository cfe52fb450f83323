#include "base/socket.h"

#include <algorithm>
#include <cerrno>
#include <memory>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>

#include <lockstep/base/error.h>

#include "base/env.h"

namespace lockstep::base {
namespace {

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

AddressList resolve(const Endpoint& endpoint, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const int error =
      getaddrinfo(endpoint.host.c_str(), std::to_string(endpoint.port).c_str(), &hints, &list);
  if (error != 0) {
    throw IoError("cannot resolve {}: {}; is it spelled right, and does this machine know it?",
                  endpoint.host, gai_strerror(error));
  }
  return {list, &freeaddrinfo};
}

Endpoint numeric(const sockaddr_storage& address, socklen_t size) {
  char host[NI_MAXHOST];
  char port[NI_MAXSERV];
  const int error = getnameinfo(reinterpret_cast<const sockaddr*>(&address), size, host,
                                sizeof host, port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV);
  if (error != 0) {
    throw IoError("cannot print a socket's address: {}", gai_strerror(error));
  }
  return {host, static_cast<uint16_t>(std::stoi(port))};
}

Endpoint local_endpoint(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    throw IoError("cannot tell a socket's own address: {}", errno_text(errno));
  }
  return numeric(address, size);
}

// Waits until `fd` is ready for `events`. False at the deadline.
bool wait_ready(int fd, short events, Deadline deadline) {
  pollfd entry{fd, events, 0};
  for (;;) {
    const int n = ::poll(&entry, 1, deadline.poll_ms());
    if (n > 0) {
      return true;
    }
    if (n == 0 && deadline.expired()) {
      return false;
    }
    if (n < 0 && errno != EINTR) {
      throw IoError("cannot wait on a socket: {}", errno_text(errno));
    }
  }
}

// One attempt at one address: 0 or the errno of the failure.
int try_connect(const addrinfo& address, Deadline deadline, UniqueFd& out) {
  UniqueFd fd(::socket(address.ai_family, address.ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) {
    return errno;
  }
  if (::connect(fd.get(), address.ai_addr, address.ai_addrlen) != 0) {
    if (errno != EINPROGRESS) {
      return errno;
    }
    if (!wait_ready(fd.get(), POLLOUT, deadline)) {
      return ETIMEDOUT;
    }
    int error = 0;
    socklen_t size = sizeof error;
    getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) {
      return error;
    }
  }
  const int on = 1;
  setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  out = std::move(fd);
  return 0;
}

enum class Refusal { IsTriedAgain, IsFinal };

UniqueFd connect_until(const Endpoint& peer, Deadline deadline, Refusal refusal) {
  using namespace std::chrono_literals;
  for (auto pause = 1ms;; pause = std::min<std::chrono::milliseconds>(pause * 2, 100ms)) {
    const AddressList list = resolve(peer, 0);
    int error = 0;
    for (const addrinfo* address = list.get(); address != nullptr; address = address->ai_next) {
      UniqueFd fd;
      error = try_connect(*address, deadline, fd);
      if (error == 0) {
        return fd;
      }
    }
    if (error == ECONNREFUSED && refusal == Refusal::IsFinal) {
      throw PeerLostError("nobody listens on {} any more", peer.text());
    }
    if (error != ECONNREFUSED && error != ETIMEDOUT && error != EHOSTUNREACH) {
      throw IoError("cannot connect to {}: {}", peer.text(), errno_text(error));
    }
    if (deadline.remaining() <= pause) {
      throw TimeoutError(
          "cannot connect to {}: {}; nothing answered before the deadline: is the "
          "process that listens there running, and does a firewall let us through?",
          peer.text(), errno_text(error));
    }
    std::this_thread::sleep_for(pause);  // back-off between attempts, bounded by the deadline
  }
}

}  // namespace

std::string Endpoint::text() const {
  return host.find(':') != std::string::npos ? fmt::format("[{}]:{}", host, port)
                                             : fmt::format("{}:{}", host, port);
}

Endpoint Endpoint::parse(const std::string& text, const std::string& what) {
  const size_t colon = text.find_last_of(':');
  std::string host = colon == std::string::npos ? "" : text.substr(0, colon);
  const auto port =
      colon == std::string::npos ? std::nullopt : parse_integer(text.substr(colon + 1), 0, 65535);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string::npos) {
    host.clear();
  }
  if (host.empty() || !port) {
    throw UsageError("{}: {} is not HOST:PORT (an IPv6 address is written [::1]:29400)", what,
                     text);
  }
  return {host, static_cast<uint16_t>(*port)};
}

Socket Socket::connect(const Endpoint& peer, Deadline deadline) {
  return Socket(connect_until(peer, deadline, Refusal::IsTriedAgain));
}

Socket Socket::connect_again(const Endpoint& peer, Deadline deadline) {
  return Socket(connect_until(peer, deadline, Refusal::IsFinal));
}

void Socket::send(const void* bytes, size_t size, Deadline deadline) {
  const size_t sent = send_until(bytes, size, deadline);
  if (sent < size) {
    throw TimeoutError("cannot send {} bytes: the peer does not read", size - sent);
  }
}

size_t Socket::send_until(const void* bytes, size_t size, Deadline deadline) {
  const char* const begin = static_cast<const char*>(bytes);
  size_t sent = 0;
  while (sent < size) {
    const ssize_t n = ::send(fd_.get(), begin + sent, size - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n >= 0) {
      sent += static_cast<size_t>(n);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (!wait_ready(fd_.get(), POLLOUT, deadline)) {
        return sent;
      }
    } else if (errno != EINTR) {
      throw IoError("cannot send {} bytes: {}", size - sent, errno_text(errno));
    }
  }
  return sent;
}

void Socket::receive(void* bytes, size_t size, Deadline deadline) {
  char* next = static_cast<char*>(bytes);
  while (size > 0) {
    const ssize_t n = ::recv(fd_.get(), next, size, MSG_DONTWAIT);
    if (n > 0) {
      next += n;
      size -= static_cast<size_t>(n);
    } else if (n == 0) {
      throw IoError("the peer closed the connection, {} bytes were still expected", size);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (!wait_ready(fd_.get(), POLLIN, deadline)) {
        throw TimeoutError("the peer sent nothing before the deadline, {} bytes were expected",
                           size);
      }
    } else if (errno != EINTR) {
      throw IoError("cannot receive {} bytes: {}", size, errno_text(errno));
    }
  }
}

std::string Socket::local_host() const {
  return local_endpoint(fd_.get()).host;
}

std::string Socket::peer_host() const {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (getpeername(fd_.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    return "";
  }
  return numeric(address, size).host;
}

std::string Socket::peer_text() const {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (getpeername(fd_.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    return "a peer that is gone";
  }
  return numeric(address, size).text();
}

void Socket::watch_liveness(std::chrono::nanoseconds lost_after) {
  using namespace std::chrono_literals;
  constexpr int64_t kMaxProbes = 100;  // of an idle connection; the kernel takes up to 127
  const auto limit = std::clamp<std::chrono::nanoseconds>(lost_after, 0s, 168h) + 500ms;
  const int64_t ms = limit / 1ms;
  const int on = 1;
  const int seconds = static_cast<int>(1 + ms / 1000 / kMaxProbes);  // idle, and between probes
  const int probes = static_cast<int>(std::max<int64_t>(1, ms / 1000 / seconds - 1));
  const auto unsent_ms = static_cast<unsigned int>(ms);  // for data that is never acknowledged
  setsockopt(fd_.get(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  setsockopt(fd_.get(), IPPROTO_TCP, TCP_KEEPIDLE, &seconds, sizeof seconds);
  setsockopt(fd_.get(), IPPROTO_TCP, TCP_KEEPINTVL, &seconds, sizeof seconds);
  setsockopt(fd_.get(), IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
  setsockopt(fd_.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, &unsent_ms, sizeof unsent_ms);
}

void Socket::shutdown() noexcept {
  if (fd_) {
    ::shutdown(fd_.get(), SHUT_RDWR);
  }
}

Listener::Listener(const Endpoint& local) {
  const AddressList list = resolve(local, AI_PASSIVE);
  fd_.reset(::socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int on = 1;
  if (!fd_ || setsockopt(fd_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
      ::bind(fd_.get(), list->ai_addr, list->ai_addrlen) != 0 || ::listen(fd_.get(), 1024) != 0) {
    throw IoError("cannot listen on {}: {}", local.text(), errno_text(errno));
  }
  endpoint_ = local_endpoint(fd_.get());
}

Socket Listener::accept() {
  UniqueFd fd(::accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (fd) {
    const int on = 1;
    setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }
  return Socket(std::move(fd));
}

}  // namespace lockstep::base
