#include "base/store/store_client.h"

#include <cerrno>
#include <poll.h>
#include <sys/socket.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

#include "base/store/store_greeting.h"

namespace lockstep::base {
namespace {

using store::Kind;
using store::Message;
using store::Reader;
using store::Writer;

constexpr size_t kMaxReplyBytes = 1u << 30;

std::string key_body(const std::string& key) {
  if (key.size() > store::kMaxKeyBytes) {
    throw UsageError("store: a key of {} bytes, at most {} are allowed", key.size(),
                     store::kMaxKeyBytes);
  }
  return Writer().text(key).take();
}

}  // namespace

StoreClient::StoreClient(StoreClientOptions options, Deadline deadline)
    : options_(std::move(options)), socket_(Socket::connect(options_.server, deadline)) {
  store::greet(socket_, {options_.server, options_.job_id, options_.secret}, unread_, deadline);
  reader_ = std::thread([this] { read_loop(); });
}

StoreClient::~StoreClient() {
  socket_.shutdown();
  if (reader_.joinable()) {
    reader_.join();
  }
}

// Whoever gives up in the middle of a frame leaves the rest of it to the next sender: the server
// would take the next frame for the end of this one.
void StoreClient::send(const Message& message, Deadline deadline) {
  const std::string frame = store::encode(message);
  std::unique_lock lock(send_mutex_, std::defer_lock);
  if (deadline.is_never()) {
    lock.lock();
  } else if (!lock.try_lock_until(deadline.when())) {
    throw TimeoutError("store: {} does not read what others send it", options_.server.text());
  }
  unsent_.erase(0, socket_.send_until(unsent_.data(), unsent_.size(), deadline));
  if (!unsent_.empty()) {
    throw TimeoutError("store: {} does not read what was sent before", options_.server.text());
  }
  const size_t sent = socket_.send_until(frame.data(), frame.size(), deadline);
  if (sent < frame.size()) {
    unsent_ = sent > 0 ? frame.substr(sent) : "";
    throw TimeoutError("store: {} does not read: {} of {} bytes were sent before the deadline",
                       options_.server.text(), sent, frame.size());
  }
}

// Nobody waits for the reply any more; the server is told if it reads that within `time`.
void StoreClient::cancel(uint64_t id, std::chrono::nanoseconds time) noexcept {
  {
    const std::lock_guard lock(mutex_);
    pending_.erase(id);
  }
  try {
    send({Kind::Cancel, 0, Writer().i64(static_cast<int64_t>(id)).take()}, Deadline::after(time));
  } catch (const std::exception& error) {
    log::debug("store", "request {} is not cancelled: {}", id, error.what());
  }
}

Message StoreClient::request(Kind kind, std::string body, Deadline deadline) {
  uint64_t id = 0;
  std::future<Message> reply;
  {
    const std::lock_guard lock(mutex_);
    if (!failure_.empty()) {
      throw PeerLostError("store: {}", failure_);
    }
    id = next_id_++;
    reply = pending_[id].get_future();
  }
  try {
    send({kind, id, std::move(body)}, deadline);
  } catch (const IoError& error) {
    cancel(id, {});
    throw PeerLostError("store: {}: {}", options_.server.text(), error.what());
  } catch (const TimeoutError&) {
    cancel(id, {});
    throw;
  }
  // The clock's end is not a time that wait_until can take: its arithmetic overflows.
  const bool in_time = deadline.is_never()
                           ? (reply.wait(), true)
                           : reply.wait_until(deadline.when()) == std::future_status::ready;
  if (!in_time) {
    cancel(id, std::chrono::seconds(1));
    throw TimeoutError("store: {} did not answer before the deadline", options_.server.text());
  }
  Message message = reply.get();
  if (message.kind == Kind::Error) {
    throw UsageError("store: {}", Reader(message.body).text());
  }
  return message;
}

void StoreClient::set(const std::string& key, const std::string& value, Deadline deadline) {
  request(Kind::Set, key_body(key) + Writer().text(value).take(), deadline);
}

void StoreClient::append(const std::string& key, const std::string& value, Deadline deadline) {
  request(Kind::Append, key_body(key) + Writer().text(value).take(), deadline);
}

std::string StoreClient::get(const std::string& key, Deadline deadline) {
  try {
    return Reader(request(Kind::Get, key_body(key), deadline).body).text();
  } catch (const TimeoutError&) {
    throw TimeoutError(
        "store: nobody set {} before the deadline: a rank is late or was never started", key);
  }
}

std::optional<std::string> StoreClient::try_get(const std::string& key, Deadline deadline) {
  const Message reply = request(Kind::TryGet, key_body(key), deadline);
  if (reply.kind == Kind::None) {
    return std::nullopt;
  }
  return Reader(reply.body).text();
}

int64_t StoreClient::add(const std::string& key, int64_t delta, Deadline deadline) {
  return Reader(request(Kind::Add, key_body(key) + Writer().i64(delta).take(), deadline).body)
      .i64();
}

std::string StoreClient::compare_set(const std::string& key, const std::string& expected,
                                     const std::string& desired, Deadline deadline) {
  std::string body = key_body(key) + Writer().text(expected).text(desired).take();
  return Reader(request(Kind::CompareSet, std::move(body), deadline).body).text();
}

bool StoreClient::erase(const std::string& key, Deadline deadline) {
  return Reader(request(Kind::Erase, key_body(key), deadline).body).i64() != 0;
}

int64_t StoreClient::erase_prefix(const std::string& prefix, Deadline deadline) {
  return Reader(request(Kind::ErasePrefix, key_body(prefix), deadline).body).i64();
}

int64_t StoreClient::num_keys(Deadline deadline) {
  return Reader(request(Kind::Count, {}, deadline).body).i64();
}

void StoreClient::join(const std::string& group, int rank, const std::string& who,
                       MemberEvents events, Deadline deadline) {
  {
    const std::lock_guard lock(events_mutex_);
    members_[group] = std::move(events);
  }
  try {
    request(Kind::Join, key_body(group) + Writer().i64(rank).text(who).take(), deadline);
  } catch (...) {
    const std::lock_guard lock(events_mutex_);
    members_.erase(group);
    throw;
  }
}

void StoreClient::leave(const std::string& group, int rank, Deadline deadline) {
  {
    const std::lock_guard lock(events_mutex_);
    members_.erase(group);
  }
  request(Kind::Leave, key_body(group) + Writer().i64(rank).take(), deadline);
}

void StoreClient::send_note(const std::string& group, int from, int to, const std::string& text) {
  send({Kind::Note, 0, key_body(group) + Writer().i64(from).i64(to).text(text).take()},
       Deadline::after(std::chrono::seconds(5)));
}

void StoreClient::read_loop() {
  try {
    for (;;) {
      dispatch(store::receive_message(socket_, unread_, kMaxReplyBytes, Deadline::never()));
    }
  } catch (const Error& error) {
    fail(fmt::format("the connection to {} is over: {}", options_.server.text(), error.what()));
  }
}

void StoreClient::dispatch(const Message& message) {
  if (message.kind != Kind::Lost && message.kind != Kind::Noted) {
    const std::lock_guard lock(mutex_);
    const auto waiting = pending_.find(message.id);
    if (waiting != pending_.end()) {  // else: the caller has given up
      waiting->second.set_value(message);
      pending_.erase(waiting);
    }
    return;
  }
  Reader in(message.body);
  const std::string group = in.text();
  const auto rank = static_cast<int>(in.i64());
  const std::string text = in.text();
  const std::lock_guard lock(events_mutex_);
  const auto member = members_.find(group);
  if (member == members_.end()) {
    return;
  }
  (message.kind == Kind::Lost ? member->second.lost : member->second.noted)(rank, text);
}

void StoreClient::fail(const std::string& why) {
  std::map<uint64_t, std::promise<Message>> abandoned;
  {
    const std::lock_guard lock(mutex_);
    failure_ = why;
    abandoned.swap(pending_);
  }
  for (auto& [id, promise] : abandoned) {
    promise.set_exception(std::make_exception_ptr(PeerLostError("store: {}", why)));
  }
  const std::lock_guard lock(events_mutex_);
  for (const auto& [group, events] : members_) {
    events.disconnected(why);
  }
}

}  // namespace lockstep::base
