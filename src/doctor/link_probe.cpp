#include "doctor/link_probe.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <lockstep/base/error.h>

namespace lockstep::doctor {

namespace {

constexpr size_t kMaxPeers = 1024;
constexpr auto kGreetTime = std::chrono::seconds(5);
constexpr auto kMeasureTime = std::chrono::seconds(10);  // before it is given up
constexpr auto kPingTime = std::chrono::milliseconds(100);
constexpr size_t kMaxPings = 200;
constexpr auto kSendTime = std::chrono::milliseconds(300);
constexpr uint64_t kSendBytes = 64u << 20;
constexpr size_t kChunkBytes = 256 * 1024;
constexpr char kEcho = 'e';
constexpr char kCount = 'c';
constexpr char kWelcome = '+';

using CountBytes = std::array<unsigned char, 8>;

CountBytes to_bytes(uint64_t count) {
  CountBytes bytes;
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<unsigned char>(count >> (8 * (bytes.size() - 1 - i)));
  }
  return bytes;
}

// Few bytes into an empty buffer: all or nothing.
bool send_now(const base::Socket& socket, const void* bytes, size_t size) {
  return ::send(socket.fd(), bytes, size, MSG_NOSIGNAL | MSG_DONTWAIT) ==
         static_cast<ssize_t>(size);
}

// One attempt of try_links().
struct Attempt {
  base::Socket socket;
  bool greeted = false;
  bool done = false;
  std::string problem;

  void end(const std::string& why) {
    problem = why;
    done = true;
    socket = base::Socket();
  }
};

Attempt begin_connect(const base::Endpoint& to) {
  Attempt attempt;
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  if (::getaddrinfo(to.host.c_str(), std::to_string(to.port).c_str(), &hints, &list) != 0) {
    attempt.end("not a numeric address");
    return attempt;
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(list, &::freeaddrinfo);
  attempt.socket = base::Socket(
      base::UniqueFd(::socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)));
  if (!attempt.socket || (::connect(attempt.socket.fd(), list->ai_addr, list->ai_addrlen) != 0 &&
                          errno != EINPROGRESS)) {
    attempt.end(base::errno_text(errno));
  }
  return attempt;
}

void go_on(Attempt& attempt, const ProbeTarget& target) {
  if (!attempt.greeted) {
    int error = 0;
    socklen_t size = sizeof error;
    ::getsockopt(attempt.socket.fd(), SOL_SOCKET, SO_ERROR, &error, &size);
    const std::string greeting = target.token + kEcho;
    if (error != 0 || !send_now(attempt.socket, greeting.data(), greeting.size())) {
      attempt.end(base::errno_text(error != 0 ? error : errno));
    }
    attempt.greeted = true;
    return;
  }
  char answer = 0;
  const ssize_t n = ::recv(attempt.socket.fd(), &answer, 1, MSG_DONTWAIT);
  attempt.end(n == 1 && answer == kWelcome ? "" : "something else than lockstep answers there");
}

base::Socket greeted_connection(const ProbeTarget& target, char letter, base::Deadline deadline) {
  base::Socket socket = base::Socket::connect(target.endpoint, deadline);
  const std::string greeting = target.token + letter;
  socket.send(greeting.data(), greeting.size(), deadline);
  char answer = 0;
  socket.receive(&answer, 1, deadline);
  if (answer != kWelcome) {
    throw IoError("something else than lockstep answers at {}", target.endpoint.text());
  }
  return socket;
}

double measure_rtt_us(const ProbeTarget& target, base::Deadline deadline) {
  base::Socket socket = greeted_connection(target, kEcho, deadline);
  std::vector<double> times;
  const base::Deadline enough = base::Deadline::after(kPingTime);
  while (times.size() < kMaxPings && (times.empty() || !enough.expired())) {
    char byte = 'x';
    const auto begin = base::Clock::now();
    socket.send(&byte, 1, deadline);
    socket.receive(&byte, 1, deadline);
    times.push_back(std::chrono::duration<double, std::micro>(base::Clock::now() - begin).count());
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

double measure_gb_per_s(const ProbeTarget& target, base::Deadline deadline) {
  base::Socket socket = greeted_connection(target, kCount, deadline);
  // Without a limit a slow link would still be busy with the kernel's buffer long after kSendTime.
  const int unsent_bytes = static_cast<int>(kChunkBytes);
  ::setsockopt(socket.fd(), IPPROTO_TCP, TCP_NOTSENT_LOWAT, &unsent_bytes, sizeof unsent_bytes);
  const std::vector<char> chunk(kChunkBytes);
  const auto begin = base::Clock::now();
  const base::Deadline enough = base::Deadline::after(kSendTime);
  uint64_t sent = 0;
  while (sent < kSendBytes && !enough.expired()) {
    socket.send(chunk.data(), chunk.size(), deadline);
    sent += chunk.size();
  }
  ::shutdown(socket.fd(), SHUT_WR);
  CountBytes received{};
  socket.receive(received.data(), received.size(), deadline);
  const std::chrono::duration<double> elapsed = base::Clock::now() - begin;
  if (received != to_bytes(sent)) {
    throw IoError("{} received another number of bytes than the {} that were sent",
                  target.endpoint.text(), sent);
  }
  return static_cast<double>(sent) / elapsed.count() / 1e9;
}

}  // namespace

ProbeListener::ProbeListener(const std::string& address, std::string token)
    : token_(std::move(token)), listener_({.host = address}), stop_(::eventfd(0, EFD_CLOEXEC)) {
  LOCKSTEP_CHECK(token_.size() == kProbeTokenBytes, "a token of {} bytes", token_.size());
  if (!stop_) {
    throw IoError("cannot make an eventfd: {}", base::errno_text(errno));
  }
  thread_ = std::thread([this] { serve(); });
}

ProbeListener::~ProbeListener() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = ::write(stop_.get(), &one, sizeof one);
  thread_.join();
}

void ProbeListener::serve() {
  for (;;) {
    enum : size_t { kStop, kListener, kFirstPeer };  // the entries of `polls`
    std::vector<pollfd> polls{{stop_.get(), POLLIN, 0},
                              {peers_.size() < kMaxPeers ? listener_.fd() : -1, POLLIN, 0}};
    base::Deadline next = base::Deadline::never();
    for (const Peer& peer : peers_) {
      polls.push_back({peer.socket.fd(), POLLIN, 0});
      next = next.earlier(peer.must_greet);
    }
    if (::poll(polls.data(), polls.size(), next.poll_ms()) < 0) {
      continue;  // EINTR
    }
    if (polls[kStop].revents != 0) {
      return;
    }
    for (size_t i = 0; i < peers_.size(); ++i) {
      if ((polls[kFirstPeer + i].revents != 0 && !handle(peers_[i])) ||
          peers_[i].must_greet.expired()) {
        peers_[i].socket = base::Socket();
      }
    }
    std::erase_if(peers_, [](const Peer& peer) { return !peer.socket; });
    if (polls[kListener].revents != 0) {
      accept_all();
    }
  }
}

void ProbeListener::accept_all() {
  while (peers_.size() < kMaxPeers) {
    base::Socket socket = listener_.accept();
    if (!socket) {
      return;
    }
    peers_.push_back(
        {.socket = std::move(socket), .must_greet = base::Deadline::after(kGreetTime)});
  }
}

// Returns false if the peer is to be dropped.
bool ProbeListener::greet(Peer& peer, const char* bytes, size_t size) {
  peer.greeting.append(bytes, size);
  if (peer.greeting.size() <= kProbeTokenBytes) {
    return true;
  }
  const char letter = peer.greeting.back();
  // Clients wait for the welcome before they send more.
  const bool is_known = peer.greeting.size() == kProbeTokenBytes + 1 &&
                        peer.greeting.starts_with(token_) && (letter == kEcho || letter == kCount);
  peer.must_greet = base::Deadline::never();
  return is_known && send_now(peer.socket, &kWelcome, 1);
}

bool ProbeListener::handle(Peer& peer) {
  static thread_local char buffer[kChunkBytes];
  const ssize_t n = ::recv(peer.socket.fd(), buffer, sizeof buffer, MSG_DONTWAIT);
  const bool is_greeted = peer.greeting.size() > kProbeTokenBytes;
  const bool is_counting = is_greeted && peer.greeting.back() == kCount;
  if (n < 0) {
    return errno == EAGAIN || errno == EINTR;
  }
  if (n == 0) {
    const CountBytes count = to_bytes(peer.num_bytes);
    if (is_counting) {
      send_now(peer.socket, count.data(), count.size());
    }
    return false;
  }
  if (!is_greeted) {
    return greet(peer, buffer, static_cast<size_t>(n));
  }
  peer.num_bytes += static_cast<uint64_t>(n);
  return is_counting || send_now(peer.socket, buffer, static_cast<size_t>(n));
}

std::vector<std::string> try_links(const std::vector<ProbeTarget>& targets,
                                   std::chrono::milliseconds timeout) {
  std::vector<Attempt> attempts;
  attempts.reserve(targets.size());
  for (const ProbeTarget& target : targets) {
    attempts.push_back(begin_connect(target.endpoint));
  }
  const base::Deadline deadline = base::Deadline::after(timeout);
  const auto is_done = [](const Attempt& attempt) { return attempt.done; };
  while (!std::all_of(attempts.begin(), attempts.end(), is_done) && !deadline.expired()) {
    std::vector<pollfd> polls;
    polls.reserve(attempts.size());
    for (const Attempt& attempt : attempts) {
      polls.push_back({attempt.done ? -1 : attempt.socket.fd(),
                       static_cast<short>(attempt.greeted ? POLLIN : POLLOUT), 0});
    }
    const int ready = ::poll(polls.data(), polls.size(), deadline.poll_ms());
    for (size_t i = 0; ready > 0 && i < attempts.size(); ++i) {
      if (polls[i].revents != 0 && !attempts[i].done) {
        go_on(attempts[i], targets[i]);
      }
    }
  }
  std::vector<std::string> problems;
  problems.reserve(attempts.size());
  for (const Attempt& attempt : attempts) {
    problems.push_back(attempt.done ? attempt.problem
                                    : fmt::format("no answer within {}", base::to_text(timeout)));
  }
  return problems;
}

LinkSpeed measure_link(const ProbeTarget& target) {
  const base::Deadline deadline = base::Deadline::after(kMeasureTime);
  return {.rtt_us = measure_rtt_us(target, deadline),
          .gb_per_s = measure_gb_per_s(target, deadline)};
}

}  // namespace lockstep::doctor
