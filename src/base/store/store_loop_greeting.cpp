// Who a connection is: the greeting, agents, and what becomes of those who are refused.

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

#include "base/store/store_loop.h"
#include "base/store/store_scope.h"

namespace lockstep::base {
namespace {

using store::Kind;
using store::Message;
using store::Reader;
using store::Writer;

constexpr uint64_t kMaxLoggedRefusals = 16;  // in full; then only the 32nd, 64th, 128th...

}  // namespace

void StoreServer::Loop::tell_agent(ClientId id, const std::string& text) {
  if (connections_.count(id) != 0) {
    Connection& connection = connections_.at(id);
    const std::string frame = store::encode({Kind::Agent, 0, Writer().text(text).take()});
    connection.session.keep(frame);
    connection.out += frame;
    flush(id);
  }
}

void StoreServer::Loop::hang_up(ClientId id) {
  if (connections_.count(id) != 0) {
    connections_.at(id).is_closing = true;
    flush(id);
  }
}

void StoreServer::Loop::hear(ClientId id, const Message& message) {
  Reader in(message.body);
  if (message.kind == Kind::Resume) {
    resume(id, in);
    return;
  }
  store::Session& session = connections_.at(id).session;
  if (message.kind == Kind::Received) {
    session.confirm(in.i64());
    return;
  }
  if (message.kind != Kind::Agent) {
    throw FormatError("an agent sent a message of kind {}", static_cast<int>(message.kind));
  }
  const std::string text = in.text();
  in.end();
  if (session.take(message.body.size())) {
    send(id, {Kind::Received, 0, Writer().i64(session.num_received()).take()});
  }
  agents_->agent_said(id, text);
}

// A reset or the like, not a hang-up: the agent lives as far as anyone knows, and may come back.
void StoreServer::Loop::break_off(ClientId id) {
  Connection& connection = connections_.at(id);
  connection.socket = Socket();  // closing takes it out of the epoll set
  connection.in.clear();
  connection.out.clear();
  connection.is_cut = false;
  broken_.emplace(id, Deadline::after(options_.lost_after));
}

// `id`, which has just come, is the agent of an earlier connection: that one goes on here, even
// if this side has not noticed yet that it broke.
void StoreServer::Loop::resume(ClientId id, Reader& in) {
  const auto before = static_cast<ClientId>(in.i64());
  const int64_t num_received = in.i64();
  in.end();
  const auto found = connections_.find(before);
  if (before == id || found == connections_.end() || !found->second.is_agent) {
    refuse(id, "the connection that it wants to go on with was given up");
    return;
  }
  Connection& connection = found->second;
  connection.session.confirm(num_received);
  connection.socket = std::move(connections_.at(id).socket);
  connection.in = std::move(connections_.at(id).in);
  const int64_t mine = connection.session.num_received();
  connection.out = store::encode({Kind::Resumed, 0, Writer().i64(mine).take()}) +
                   connection.session.unconfirmed();
  connections_.erase(id);
  broken_.erase(before);
  agents_->agent_went(id);
  flush(before);
}

// Hello, then Answer, each once: whoever repeats itself would have us answer without end.
void StoreServer::Loop::greet(ClientId id, Connection& connection, const Message& message) {
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

void StoreServer::Loop::challenge(ClientId id, Connection& connection, Reader& in) {
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
  } else if (const std::string mistake = mistake_of(connection); !mistake.empty()) {
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

void StoreServer::Loop::check_answer(ClientId id, Connection& connection, Reader& in) {
  Proof proof{};
  in.bytes(proof.data(), proof.size());
  in.end();
  if (!same_proof(proof, prove("client", connection))) {
    refuse(id, "it does not know the job's secret (LOCKSTEP_JOB_SECRET)");
    return;
  }
  // Between challenge and answer the ranks may have been started anew.
  if (const std::string mistake = mistake_of(connection); !mistake.empty()) {
    refuse(id, mistake);
    return;
  }
  connection.is_trusted = true;
  connection.is_agent =
      agents_ != nullptr && connection.scope == store::agent_scope(options_.job_id);
  strangers_.erase(id);
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(options_.lost_after).count();
  send(id, {Kind::Welcome, 0, Writer().i64(static_cast<int64_t>(id)).i64(ms).take()});
  if (connection.is_agent) {
    agents_->agent_came(id, connection.socket.peer_host());
  }
}

std::string StoreServer::Loop::mistake_of(const Connection& connection) const {
  return store::scope_mistake({options_.job_id, generation_, agents_ != nullptr}, connection.scope);
}

Proof StoreServer::Loop::prove(std::string_view side, const Connection& connection) const {
  return make_proof(options_.secret, side, connection.scope, connection.client_nonce,
                    connection.server_nonce);
}

void StoreServer::Loop::refuse(ClientId id, const std::string& reason) {
  log_refusal("refused", connections_.at(id).socket, reason);
  connections_.at(id).is_closing = true;
  send(id, {Kind::Refused, 0, Writer().text(reason).take()});
}

// Ten thousand strangers must not cost the job a full disk either.
void StoreServer::Loop::log_refusal(const char* what, const Socket& socket,
                                    const std::string& reason) {
  ++num_refused_;
  const bool is_power = (num_refused_ & (num_refused_ - 1)) == 0;
  if (num_refused_ <= kMaxLoggedRefusals || is_power) {
    log::warn("store", "{} {}: {}{}", what, socket.peer_text(), reason,
              num_refused_ <= kMaxLoggedRefusals
                  ? ""
                  : fmt::format(" (refusal {}; not all are logged)", num_refused_));
  }
}

}  // namespace lockstep::base
