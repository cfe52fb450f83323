#include "base/store/store_server.h"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

#include "base/store/store_loop.h"

namespace lockstep::base {
namespace {

using store::ClientId;
using store::Kind;
using store::Message;
using store::Reader;
using store::Writer;

constexpr auto kGreetingTime = std::chrono::seconds(10);  // for a stranger to prove itself
constexpr size_t kMaxUnsentBytes = 512u << 20;  // a client that asks and never reads is dropped
// Who has proved nothing and holds one of these places the longest gives it up to the next.
constexpr size_t kMaxStrangers = 1024;
constexpr int kMaxAccepts = 64;  // in a row: those who are in are served in between
constexpr uint64_t kListenerTag = 0;
constexpr uint64_t kWakeTag = 1;

}  // namespace

StoreServer::Loop::Loop(StoreServerOptions options)
    : options_(std::move(options)),
      listener_(options_.listen),
      table_(options_.max_total_bytes),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!epoll_ || !wake_) {
    throw IoError("store: cannot make an epoll or event descriptor: {}", errno_text(errno));
  }
  watch(listener_.fd(), kListenerTag, EPOLLIN, EPOLL_CTL_ADD);
  watch(wake_.get(), kWakeTag, EPOLLIN, EPOLL_CTL_ADD);
}

StoreServer::Loop::~Loop() {
  if (thread_.joinable()) {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t n = ::write(wake_.get(), &one, sizeof one);
    thread_.join();
  }
}

void StoreServer::Loop::start() {
  LOCKSTEP_CHECK(!thread_.joinable(), "the store's server was started twice");
  thread_ = std::thread([this] { run(); });
}

// Strangers get the same time each, so the first that came is the first to go.
Deadline StoreServer::Loop::next_timeout() const {
  Deadline next = strangers_.empty() ? Deadline::never()
                                     : connections_.at(*strangers_.begin()).greeting_deadline;
  for (const auto& [id, come_back_by] : broken_) {
    next = next.earlier(come_back_by);
  }
  return next;
}

bool StoreServer::Loop::serve_events(int wait_ms) {
  epoll_event events[64];
  const int n = ::epoll_wait(epoll_.get(), events, 64, wait_ms);
  for (int i = 0; i < n; ++i) {
    const uint64_t tag = events[i].data.u64;
    if (tag == kWakeTag) {
      return false;
    }
    try {
      if (tag == kListenerTag) {
        accept_some();
      } else if (connections_.count(tag) != 0) {
        serve(tag, events[i].events);
      }
    } catch (const Error& error) {  // of one connection: the others are served on
      log::warn("store", "{}", error.what());
    }
  }
  drop_the_late();
  return true;
}

void StoreServer::Loop::begin_generation(int64_t generation) {
  generation_ = generation;
  table_ = store::Table(options_.max_total_bytes);
  std::vector<ClientId> ranks;
  for (const auto& [id, connection] : connections_) {
    if (!connection.is_agent && connection.is_trusted) {
      ranks.push_back(id);
    }
  }
  for (const ClientId id : ranks) {
    close(id, "");
  }
}

void StoreServer::Loop::announce(const std::string& group, const std::string& text) {
  deliver(table_.announce(group, text));
}

void StoreServer::Loop::watch(int fd, uint64_t tag, uint32_t events, int operation) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = tag;
  if (::epoll_ctl(epoll_.get(), operation, fd, &event) != 0) {
    throw IoError("store: epoll_ctl: {}", errno_text(errno));
  }
}

void StoreServer::Loop::run() {
  while (serve_events(next_timeout().poll_ms())) {
  }
}

void StoreServer::Loop::drop_the_late() {
  while (!strangers_.empty() && connections_.at(*strangers_.begin()).greeting_deadline.expired()) {
    close(*strangers_.begin(),
          fmt::format("it did not prove itself within {}", to_text(kGreetingTime)));
  }
  for (const auto& [id, come_back_by] : std::map(broken_)) {
    if (come_back_by.expired()) {
      close(id, "");
    }
  }
}

void StoreServer::Loop::accept_some() {
  for (int i = 0; i < kMaxAccepts; ++i) {
    Socket socket = listener_.accept();
    if (!socket && (errno == EMFILE || errno == ENFILE)) {
      socket = accept_at_limit();
    }
    if (!socket) {
      return;
    }
    if (strangers_.size() >= kMaxStrangers) {
      close(*strangers_.begin(), "it proved nothing while others came");
    }
    if (connections_.size() >= options_.max_connections) {
      log_refusal("refused", socket,
                  fmt::format("{} connections are open, the limit", connections_.size()));
      continue;
    }
    const ClientId id = next_id_++;
    socket.watch_liveness(options_.lost_after);
    watch(socket.fd(), id, EPOLLIN, EPOLL_CTL_ADD);
    Connection& connection = connections_[id];
    connection.socket = std::move(socket);
    connection.greeting_deadline = Deadline::after(kGreetingTime);
    strangers_.insert(id);
  }
}

// No descriptor is left, and a connection that waits would wake us for ever: the spare one is
// given up for it. Then the first of those who have proved nothing goes, or it goes itself.
Socket StoreServer::Loop::accept_at_limit() {
  const char* reason = "this process has no file descriptor left (ulimit -n)";
  spare_.reset();
  Socket socket = listener_.accept();
  if (socket && !strangers_.empty()) {
    close(*strangers_.begin(), reason);
  } else if (socket) {
    log_refusal("refused", socket, reason);
    socket = Socket();
  }
  spare_.reset(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  return socket;
}

void StoreServer::Loop::serve(ClientId id, uint32_t events) {
  try {
    if ((events & EPOLLOUT) != 0) {
      flush(id);
    }
    if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0 && connections_.count(id) != 0) {
      receive(id);
    }
  } catch (const Error& error) {
    close(id, error.what());
  }
}

void StoreServer::Loop::receive(ClientId id) {
  char buffer[65536];
  const ssize_t n = ::recv(connections_.at(id).socket.fd(), buffer, sizeof buffer, MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
    return;
  }
  if (n < 0 || (n == 0 && connections_.at(id).is_cut)) {
    const Connection& connection = connections_.at(id);
    // Who was hung up on comes back only for what it has not heard yet.
    if (connection.is_agent && (!connection.is_closing || connection.session.kept_bytes() > 0)) {
      break_off(id);
      return;
    }
  }
  if (n <= 0) {
    const Connection& connection = connections_.at(id);
    const bool was_challenged = !connection.is_trusted && connection.server_nonce != Nonce{};
    close(id, was_challenged && !connection.is_closing
                  ? "it hung up when this side had proved itself; is its secret another one "
                    "(LOCKSTEP_JOB_SECRET, --secret-file, ~/.config/lockstep/key)?"
                  : "");
    return;
  }
  if (!connections_.at(id).is_closing) {  // else nobody reads it any more
    connections_.at(id).in.append(buffer, static_cast<size_t>(n));
  }
  // A handler may close the connection, so look it up anew each time.
  for (Message message; connections_.count(id) != 0 && !connections_.at(id).is_closing;) {
    Connection& connection = connections_.at(id);
    const size_t limit =
        connection.is_trusted
            ? options_.max_value_bytes + store::kMaxGreetingBytes + 2 * store::kMaxKeyBytes
            : store::kMaxGreetingBytes;
    if (!store::decode(connection.in, limit, message)) {
      return;
    }
    if (connection.is_agent) {
      hear(id, message);
    } else if (connection.is_trusted) {
      deliver(table_.handle(id, message));
    } else {
      greet(id, connection, message);
    }
  }
}

void StoreServer::Loop::deliver(const std::vector<store::Outgoing>& messages) {
  for (const auto& [to, message] : messages) {
    if (connections_.count(to) != 0) {
      send(to, message);
    }
  }
}

void StoreServer::Loop::send(ClientId id, const Message& message) {
  connections_.at(id).out += store::encode(message);
  flush(id);
}

void StoreServer::Loop::flush(ClientId id) {
  Connection& connection = connections_.at(id);
  if (!connection.socket) {  // it broke; what is kept is sent when it comes back
    connection.out.clear();
    if (connection.session.kept_bytes() > kMaxUnsentBytes) {
      broken_.at(id) = Deadline::after(std::chrono::nanoseconds(0));
    }
    return;
  }
  while (!connection.out.empty()) {
    const ssize_t n = ::send(connection.socket.fd(), connection.out.data(), connection.out.size(),
                             MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0) {
      if (errno == EINTR) {
        continue;
      }
      // Any other trouble shows as a hang-up, which receive() handles; never from inside a
      // delivery. EPIPE: the client hung up before; a reset is told once, to us or to receive().
      connection.is_cut |= errno != EAGAIN && errno != EWOULDBLOCK && errno != EPIPE;
      if (connection.out.size() > kMaxUnsentBytes) {
        connection.socket.shutdown();
        connection.out.clear();
      }
      break;
    }
    connection.out.erase(0, static_cast<size_t>(n));
  }
  if (connection.is_closing && connection.out.empty()) {
    connection.socket.shutdown();  // the hang-up comes back as an event and closes it
  }
  watch(connection.socket.fd(), id, connection.out.empty() ? EPOLLIN : EPOLLIN | EPOLLOUT,
        EPOLL_CTL_MOD);
}

void StoreServer::Loop::close(ClientId id, const std::string& reason) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) {
    return;
  }
  if (!reason.empty()) {
    log_refusal("dropped", found->second.socket, reason);
  }
  const bool is_agent = found->second.is_agent;
  strangers_.erase(id);
  broken_.erase(id);
  connections_.erase(found);  // closing takes it out of the epoll set
  if (is_agent) {
    agents_->agent_went(id);
  } else {
    deliver(table_.drop(id));
  }
}

StoreServer::StoreServer(StoreServerOptions options)
    : loop_(std::make_unique<Loop>(std::move(options))) {}
StoreServer::~StoreServer() = default;
void StoreServer::start() {
  loop_->start();
}
int StoreServer::fd() const {
  return loop_->fd();
}
Deadline StoreServer::next_timeout() const {
  return loop_->next_timeout();
}
void StoreServer::serve() {
  loop_->serve_events(0);
}
void StoreServer::listen_to_agents(AgentListener& listener) {
  loop_->listen_to_agents(listener);
}
void StoreServer::tell_agent(uint64_t agent, const std::string& text) {
  loop_->tell_agent(agent, text);
}
void StoreServer::hang_up(uint64_t agent) {
  loop_->hang_up(agent);
}
void StoreServer::begin_generation(int64_t generation) {
  loop_->begin_generation(generation);
}
void StoreServer::announce(const std::string& group, const std::string& text) {
  loop_->announce(group, text);
}
size_t StoreServer::num_members(const std::string& group) const {
  return loop_->num_members(group);
}
std::optional<std::string> StoreServer::find(const std::string& key) const {
  return loop_->find(key);
}
const Endpoint& StoreServer::endpoint() const {
  return loop_->endpoint();
}

}  // namespace lockstep::base
