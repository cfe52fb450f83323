#pragma once

// The inside of StoreServer: its connections. Who they are is in store_loop_greeting.cpp, what
// comes and goes over them in store_server.cpp, what they are answered is store::Table's.

#include <fcntl.h>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/secret.h"
#include "base/store/store_server.h"
#include "base/store/store_session.h"
#include "base/store/store_table.h"
#include "base/unique_fd.h"

namespace lockstep::base {

class StoreServer::Loop {
 public:
  using ClientId = store::ClientId;

  explicit Loop(StoreServerOptions options);
  ~Loop();
  void start();
  const Endpoint& endpoint() const { return listener_.endpoint(); }
  int fd() const { return epoll_.get(); }

  Deadline next_timeout() const;
  // Waits up to `wait_ms` and serves what is ready; false once the server is to end.
  bool serve_events(int wait_ms);
  void listen_to_agents(AgentListener& listener) { agents_ = &listener; }

  void tell_agent(ClientId id, const std::string& text);
  void hang_up(ClientId id);
  void begin_generation(int64_t generation);
  void announce(const std::string& group, const std::string& text);
  size_t num_members(const std::string& group) const { return table_.num_members(group); }
  std::optional<std::string> find(const std::string& key) const { return table_.find(key); }

 private:
  struct Connection {
    Socket socket;
    std::string in;
    std::string out;
    bool is_trusted = false;
    bool is_agent = false;    // else a rank
    bool is_closing = false;  // to be dropped once `out` is sent
    bool is_cut = false;      // it broke; it did not hang up
    Nonce client_nonce{};
    Nonce server_nonce{};
    std::string scope;  // of its greeting
    Deadline greeting_deadline = Deadline::never();
    store::Session session;  // an agent's
  };

  void watch(int fd, uint64_t tag, uint32_t events, int operation);
  void run();
  void drop_the_late();
  void accept_some();
  Socket accept_at_limit();
  void serve(ClientId id, uint32_t events);
  void receive(ClientId id);
  void hear(ClientId id, const store::Message& message);
  void break_off(ClientId id);
  void resume(ClientId id, store::Reader& in);
  void greet(ClientId id, Connection& connection, const store::Message& message);
  void challenge(ClientId id, Connection& connection, store::Reader& in);
  void check_answer(ClientId id, Connection& connection, store::Reader& in);
  std::string mistake_of(const Connection& connection) const;
  Proof prove(std::string_view side, const Connection& connection) const;
  void refuse(ClientId id, const std::string& reason);
  void deliver(const std::vector<store::Outgoing>& messages);
  void send(ClientId id, const store::Message& message);
  void flush(ClientId id);
  void close(ClientId id, const std::string& reason);
  void log_refusal(const char* what, const Socket& socket, const std::string& reason);

  StoreServerOptions options_;
  Listener listener_;
  store::Table table_;
  UniqueFd epoll_;
  UniqueFd wake_;
  UniqueFd spare_ = open_file("/dev/null", O_RDONLY);  // see accept_at_limit()
  ClientId next_id_ = 2;  // the first numbers are the listener's and the wake-up's
  std::map<ClientId, Connection> connections_;
  std::set<ClientId> strangers_;         // connections that have proved nothing yet, in their order
  std::map<ClientId, Deadline> broken_;  // agents without a connection, and until when they may be
  AgentListener* agents_ = nullptr;
  int64_t generation_ = -1;  // -1: ranks are not told apart by it
  uint64_t num_refused_ = 0;
  std::thread thread_;
};

}  // namespace lockstep::base
