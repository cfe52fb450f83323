#include "base/store_server.h"

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
constexpr uint64_t kListenerTag = 0;
constexpr uint64_t kWakeTag = 1;
constexpr ClientId kFirstClient = 2;

struct Connection {
  Socket socket;
  std::string in;
  std::string out;
  bool is_trusted = false;
  bool is_closing = false;  // to be dropped once `out` is sent
  Nonce client_nonce{};
  Nonce server_nonce{};
  Deadline greeting_deadline = Deadline::never();
};

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
    epoll_event events[64];
    for (;;) {
      const int n = ::epoll_wait(epoll_.get(), events, 64, next_timeout().poll_ms());
      for (int i = 0; i < n; ++i) {
        const uint64_t tag = events[i].data.u64;
        if (tag == kWakeTag) {
          return;
        }
        try {
          if (tag == kListenerTag) {
            accept_all();
          } else if (connections_.count(tag) != 0) {
            serve(tag, events[i].events);
          }
        } catch (const Error& error) {  // of one connection: the others are served on
          log::warn("store", "{}", error.what());
        }
      }
      drop_silent_strangers();
    }
  }

  Deadline next_timeout() const {
    Deadline first = Deadline::never();
    for (const ClientId id : strangers_) {
      first = first.earlier(connections_.at(id).greeting_deadline);
    }
    return first;
  }

  void drop_silent_strangers() {
    const std::set<ClientId> strangers = strangers_;
    for (const ClientId id : strangers) {
      if (connections_.at(id).greeting_deadline.expired()) {
        close(id, fmt::format("it did not prove itself within {}", to_text(kGreetingTime)));
      }
    }
  }

  void accept_all() {
    for (;;) {
      Socket socket = listener_.accept();
      if (!socket) {
        if ((errno == EMFILE || errno == ENFILE) && turn_one_away()) {
          continue;
        }
        return;
      }
      if (connections_.size() >= options_.max_connections) {
        log::warn("store", "refused {}: {} connections are open, the limit", socket.peer_text(),
                  connections_.size());
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

  // No descriptor is left. A connection that waits would wake us for ever, so the spare one is
  // given up to take it and hang up.
  bool turn_one_away() {
    spare_.reset();
    const bool is_gone = static_cast<bool>(listener_.accept());
    spare_.reset(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (is_gone) {
      log::warn("store",
                "turned a connection away: this process has no file descriptor left (ulimit -n)");
    }
    return is_gone;
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
    connections_.at(id).in.append(buffer, static_cast<size_t>(n));
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
      if (connection.is_trusted) {
        deliver(table_.handle(id, message));
      } else {
        greet(id, connection, message);
      }
    }
  }

  void greet(ClientId id, Connection& connection, const Message& message) {
    Reader in(message.body);
    if (message.kind == Kind::Hello) {
      if (in.u32() != store::kMagic) {
        throw FormatError("it does not speak the store's protocol");
      }
      const uint16_t version = in.u16();
      in.bytes(connection.client_nonce.data(), connection.client_nonce.size());
      const std::string job_id = in.text();
      in.end();
      if (version != store::kVersion) {
        refuse(id, fmt::format("it speaks version {} of the store's protocol, this is {}", version,
                               store::kVersion));
      } else if (job_id != options_.job_id) {
        refuse(id, fmt::format("it belongs to job {}, not to this one", job_id));
      } else {
        connection.server_nonce = random_nonce();
        const Proof proof = prove("server", connection);
        Writer body;
        body.bytes(connection.server_nonce.data(), connection.server_nonce.size());
        body.bytes(proof.data(), proof.size());
        send(id, {Kind::Challenge, 0, body.take()});
      }
      return;
    }
    const bool was_challenged = connection.server_nonce != Nonce{};
    if (message.kind != Kind::Answer || !was_challenged) {
      throw FormatError("it did not begin with a greeting");
    }
    Proof proof{};
    in.bytes(proof.data(), proof.size());
    in.end();
    if (!same_proof(proof, prove("client", connection))) {
      refuse(id, "it does not know the job's secret (LOCKSTEP_JOB_SECRET)");
      return;
    }
    connection.is_trusted = true;
    strangers_.erase(id);
    send(id, {Kind::Welcome, 0, {}});
  }

  Proof prove(std::string_view side, const Connection& connection) const {
    return make_proof(options_.secret, side, options_.job_id, connection.client_nonce,
                      connection.server_nonce);
  }

  void refuse(ClientId id, const std::string& reason) {
    log::warn("store", "refused {}: {}", connections_.at(id).socket.peer_text(), reason);
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
      log::warn("store", "dropped {}: {}", found->second.socket.peer_text(), reason);
    }
    strangers_.erase(id);
    connections_.erase(found);  // closing takes it out of the epoll set
    deliver(table_.drop(id));
  }

  StoreServerOptions options_;
  Listener listener_;
  store::Table table_;
  UniqueFd epoll_;
  UniqueFd wake_;
  UniqueFd spare_ = open_file("/dev/null", O_RDONLY);  // see turn_one_away()
  ClientId next_id_ = kFirstClient;
  std::map<ClientId, Connection> connections_;
  std::set<ClientId> strangers_;  // connections that have proved nothing yet
  std::thread thread_;
};

StoreServer::StoreServer(StoreServerOptions options)
    : loop_(std::make_unique<Loop>(std::move(options))) {}
StoreServer::~StoreServer() = default;
void StoreServer::start() {
  loop_->start();
}
const Endpoint& StoreServer::endpoint() const {
  return loop_->endpoint();
}

}  // namespace lockstep
