#include "base/store_server.h"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <map>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

#include "base/store_table.h"

namespace lockstep {
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
constexpr int kMaxAccepts = 64;              // in a row: those who are in are served in between
constexpr uint64_t kMaxLoggedRefusals = 16;  // in full; then only the 32nd, 64th, 128th...
constexpr uint64_t kListenerTag = 0;
constexpr uint64_t kWakeTag = 1;
constexpr ClientId kFirstClient = 2;

struct Connection {
  Socket socket;
  std::string in;
  std::string out;
  bool is_trusted = false;
  bool is_agent = false;    // else a rank
  bool is_closing = false;  // to be dropped once `out` is sent
  Nonce client_nonce{};
  Nonce server_nonce{};
  std::string scope;  // of its greeting
  Deadline greeting_deadline = Deadline::never();
};

// A stranger's own words, fit for the log: it must not write lines of its own there.
std::string printable(std::string text) {
  constexpr size_t kMaxShown = 64;
  text.resize(std::min(text.size(), kMaxShown));
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return text;
}

}  // namespace

// Sockets and the greeting; the answers are store::Table's.
class StoreServer::Loop {
 public:
  explicit Loop(StoreServerOptions options)
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

  ~Loop() {
    if (thread_.joinable()) {
      const uint64_t one = 1;
      [[maybe_unused]] const ssize_t n = ::write(wake_.get(), &one, sizeof one);
      thread_.join();
    }
  }

  void start() {
    LOCKSTEP_CHECK(!thread_.joinable(), "the store's server was started twice");
    thread_ = std::thread([this] { run(); });
  }

  const Endpoint& endpoint() const { return listener_.endpoint(); }
  int fd() const { return epoll_.get(); }

  // Strangers get the same time each, so the first that came is the first to go.
  Deadline next_timeout() const {
    return strangers_.empty() ? Deadline::never()
                              : connections_.at(*strangers_.begin()).greeting_deadline;
  }

  // Waits up to `wait_ms` and serves what is ready; false once the server is to end.
  bool serve_events(int wait_ms) {
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
    drop_silent_strangers();
    return true;
  }

  void listen_to_agents(AgentListener& listener) { agents_ = &listener; }

  void tell_agent(ClientId id, const std::string& text) {
    if (connections_.count(id) != 0) {
      send(id, {Kind::Agent, 0, Writer().text(text).take()});
    }
  }

  void hang_up(ClientId id) {
    if (connections_.count(id) != 0) {
      connections_.at(id).is_closing = true;
      flush(id);
    }
  }

  void begin_generation(int64_t generation) {
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

  void announce(const std::string& group, const std::string& text) {
    deliver(table_.announce(group, text));
  }
  size_t num_members(const std::string& group) const { return table_.num_members(group); }
  std::optional<std::string> find(const std::string& key) const { return table_.find(key); }

 private:
  void watch(int fd, uint64_t tag, uint32_t events, int operation) {
    epoll_event event{};
    event.events = events;
    event.data.u64 = tag;
    if (::epoll_ctl(epoll_.get(), operation, fd, &event) != 0) {
      throw IoError("store: epoll_ctl: {}", errno_text(errno));
    }
  }

  void run() {
    while (serve_events(next_timeout().poll_ms())) {
    }
  }

  void drop_silent_strangers() {
    while (next_timeout().expired()) {
      close(*strangers_.begin(),
            fmt::format("it did not prove itself within {}", to_text(kGreetingTime)));
    }
  }

  void accept_some() {
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
      socket.watch_liveness();
      watch(socket.fd(), id, EPOLLIN, EPOLL_CTL_ADD);
      Connection& connection = connections_[id];
      connection.socket = std::move(socket);
      connection.greeting_deadline = Deadline::after(kGreetingTime);
      strangers_.insert(id);
    }
  }

  // No descriptor is left, and a connection that waits would wake us for ever: the spare one is
  // given up for it. Then the first of those who have proved nothing goes, or it goes itself.
  Socket accept_at_limit() {
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

  void serve(ClientId id, uint32_t events) {
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

  void receive(ClientId id) {
    char buffer[65536];
    const ssize_t n = ::recv(connections_.at(id).socket.fd(), buffer, sizeof buffer, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
      return;
    }
    if (n <= 0) {
      close(id, "");
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

  void hear(ClientId id, const Message& message) {
    if (message.kind != Kind::Agent) {
      throw FormatError("an agent sent a message of kind {}", static_cast<int>(message.kind));
    }
    Reader in(message.body);
    const std::string text = in.text();
    in.end();
    agents_->agent_said(id, text);
  }

  // Hello, then Answer, each once: whoever repeats itself would have us answer without end.
  void greet(ClientId id, Connection& connection, const Message& message) {
    const bool was_challenged = connection.server_nonce != Nonce{};
    if (message.kind != (was_challenged ? Kind::Answer : Kind::Hello)) {
      throw FormatError(was_challenged ? "it greets again instead of proving itself"
                                       : "it did not begin with a greeting");
    }
    Reader in(message.body);
    if (was_challenged) {
      check_answer(id, connection, in);
    } else {
      challenge(id, connection, in);
    }
  }

  void challenge(ClientId id, Connection& connection, Reader& in) {
    if (in.u32() != store::kMagic) {
      throw FormatError("it does not speak the store's protocol");
    }
    const uint16_t version = in.u16();
    in.bytes(connection.client_nonce.data(), connection.client_nonce.size());
    connection.scope = in.text();
    in.end();
    if (version != store::kVersion) {
      refuse(id, fmt::format("it speaks version {} of the store's protocol, this is {}", version,
                             store::kVersion));
    } else if (const std::string mistake = scope_mistake(connection.scope); !mistake.empty()) {
      refuse(id, mistake);
    } else {
      connection.server_nonce = random_nonce();
      const Proof proof = prove("server", connection);
      Writer body;
      body.bytes(connection.server_nonce.data(), connection.server_nonce.size());
      body.bytes(proof.data(), proof.size());
      send(id, {Kind::Challenge, 0, body.take()});
    }
  }

  void check_answer(ClientId id, Connection& connection, Reader& in) {
    Proof proof{};
    in.bytes(proof.data(), proof.size());
    in.end();
    if (!same_proof(proof, prove("client", connection))) {
      refuse(id, "it does not know the job's secret (LOCKSTEP_JOB_SECRET)");
      return;
    }
    // Between challenge and answer the ranks may have been started anew.
    if (const std::string mistake = scope_mistake(connection.scope); !mistake.empty()) {
      refuse(id, mistake);
      return;
    }
    connection.is_trusted = true;
    connection.is_agent = agents_ != nullptr && connection.scope == agent_scope();
    strangers_.erase(id);
    send(id, {Kind::Welcome, 0, {}});
    if (connection.is_agent) {
      agents_->agent_came(id, connection.socket.peer_host());
    }
  }

  std::string agent_scope() const { return store::agent_scope(options_.job_id); }
  std::string rank_scope() const {
    return generation_ < 0 ? options_.job_id : store::rank_scope(options_.job_id, generation_);
  }

  // Empty if a client of this scope may go on to prove itself.
  std::string scope_mistake(const std::string& scope) const {
    if (scope == rank_scope() || (agents_ != nullptr && scope == agent_scope())) {
      return "";
    }
    if (generation_ >= 0 && scope.starts_with(options_.job_id + "/g")) {
      return fmt::format("it belongs to start {} of the job, which is at start {}",
                         printable(scope.substr(options_.job_id.size() + 2)), generation_);
    }
    if (scope == options_.job_id || scope.starts_with(options_.job_id + "/")) {
      return fmt::format("it greets as {}, where {} is expected", printable(scope), rank_scope());
    }
    return fmt::format("it belongs to job {}, not to this one",
                       printable(scope.substr(0, scope.find('/'))));
  }

  Proof prove(std::string_view side, const Connection& connection) const {
    return make_proof(options_.secret, side, connection.scope, connection.client_nonce,
                      connection.server_nonce);
  }

  void refuse(ClientId id, const std::string& reason) {
    log_refusal("refused", connections_.at(id).socket, reason);
    connections_.at(id).is_closing = true;
    send(id, {Kind::Refused, 0, Writer().text(reason).take()});
  }

  void deliver(const std::vector<store::Outgoing>& messages) {
    for (const auto& [to, message] : messages) {
      if (connections_.count(to) != 0) {
        send(to, message);
      }
    }
  }

  void send(ClientId id, const Message& message) {
    connections_.at(id).out += store::encode(message);
    flush(id);
  }

  void flush(ClientId id) {
    Connection& connection = connections_.at(id);
    while (!connection.out.empty()) {
      const ssize_t n = ::send(connection.socket.fd(), connection.out.data(), connection.out.size(),
                               MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n < 0) {
        if (errno == EINTR) {
          continue;
        }
        // Any other trouble shows as a hang-up, which receive() handles; never from inside a
        // delivery.
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

  void close(ClientId id, const std::string& reason) {
    const auto found = connections_.find(id);
    if (found == connections_.end()) {
      return;
    }
    if (!reason.empty()) {
      log_refusal("dropped", found->second.socket, reason);
    }
    const bool is_agent = found->second.is_agent;
    strangers_.erase(id);
    connections_.erase(found);  // closing takes it out of the epoll set
    if (is_agent) {
      agents_->agent_went(id);
    } else {
      deliver(table_.drop(id));
    }
  }

  // Ten thousand strangers must not cost the job a full disk either.
  void log_refusal(const char* what, const Socket& socket, const std::string& reason) {
    ++num_refused_;
    const bool is_power = (num_refused_ & (num_refused_ - 1)) == 0;
    if (num_refused_ <= kMaxLoggedRefusals || is_power) {
      log::warn("store", "{} {}: {}{}", what, socket.peer_text(), reason,
                num_refused_ <= kMaxLoggedRefusals
                    ? ""
                    : fmt::format(" (refusal {}; not all are logged)", num_refused_));
    }
  }

  StoreServerOptions options_;
  Listener listener_;
  store::Table table_;
  UniqueFd epoll_;
  UniqueFd wake_;
  UniqueFd spare_ = open_file("/dev/null", O_RDONLY);  // see accept_at_limit()
  ClientId next_id_ = kFirstClient;
  std::map<ClientId, Connection> connections_;
  std::set<ClientId> strangers_;  // connections that have proved nothing yet, in their order
  AgentListener* agents_ = nullptr;
  int64_t generation_ = -1;  // -1: ranks are not told apart by it
  uint64_t num_refused_ = 0;
  std::thread thread_;
};

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

}  // namespace lockstep
