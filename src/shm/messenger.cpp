#include "shm/messenger.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

namespace lockstep::shm {

const std::string Messenger::kStopped = "the messenger was stopped before the message got through";

Messenger::Messenger(int rank, std::vector<std::byte*> arenas)
    : rank_(rank),
      arenas_(std::move(arenas)),
      layout_(static_cast<int>(arenas_.size())),
      capacity_(layout_.inbox_bytes - kMailboxHeaderBytes),
      outgoing_(arenas_.size()),
      incoming_(arenas_.size()) {}

Mailbox& Messenger::mailbox(int from, int to) const {
  return *reinterpret_cast<Mailbox*>(arenas_[static_cast<size_t>(to)] + layout_.inboxes +
                                     static_cast<size_t>(from) * layout_.inbox_bytes);
}

std::atomic<uint32_t>& Messenger::bell(int rank) const {
  return reinterpret_cast<RankStatus*>(arenas_[static_cast<size_t>(rank)] + layout_.status)
      ->message_bell;
}

void Messenger::ring(int rank) const {
  bell(rank).fetch_add(1);
  Platform::wake_all(bell(rank));
}

void Messenger::start() {
  if (!thread_.joinable()) {
    thread_ = std::thread([this] { run(); });
    thread_id_ = thread_.get_id();
  }
}

Messenger::~Messenger() {
  stop();
  if (thread_.joinable()) {
    thread_.detach();  // the last message kept this object alive, and went on its thread
  }
}

bool Messenger::send(Message message) {
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) {
      return false;
    }
    auto& queue = outgoing_[static_cast<size_t>(message.peer)];
    queue.push_back({.message = std::move(message)});
    start();
  }
  ring(rank_);
  return true;
}

bool Messenger::receive(Message message) {
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) {
      return false;
    }
    auto& from = incoming_[static_cast<size_t>(message.peer)];
    from.wanted.push_back(std::move(message));
    start();
  }
  ring(rank_);
  return true;
}

void Messenger::stop() {
  std::thread thread;
  {
    const std::lock_guard lock(mutex_);
    if (!stopping_) {
      stopping_ = true;
      ring(rank_);
    }
    if (thread_id_ == std::this_thread::get_id()) {
      return;  // a callback of its own: it ends when that returns
    }
  }
  const std::lock_guard joining(join_mutex_);
  {
    const std::lock_guard lock(mutex_);
    thread.swap(thread_);
  }
  if (thread.joinable()) {
    thread.join();
  }
}

std::vector<Message> Messenger::take_pending() {
  std::vector<Message> pending;
  for (auto& queue : outgoing_) {
    for (Outgoing& out : queue) {
      pending.push_back(std::move(out.message));
    }
    queue.clear();
  }
  for (Incoming& from : incoming_) {
    std::move(from.wanted.begin(), from.wanted.end(), std::back_inserter(pending));
    from.wanted.clear();
  }
  return pending;
}

void Messenger::run() {
  std::vector<Message> pending;  // when it is stopped
  while (true) {
    const uint32_t rings =
        bell(rank_).load();  // first: what is rung for from here on is not slept over
    bool moved = false;
    std::vector<std::function<void()>> finished;
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) {
        pending = take_pending();
        break;
      }
      moved = pump();
      finished.swap(finished_);
    }
    for (const auto& callback : finished) {
      callback();
    }
    if (!moved) {
      Platform::sleep(bell(rank_), rings, base::Deadline::never());
    }
  }
  for (const Message& message : pending) {
    message.done(kStopped);
  }
}

bool Messenger::pump() {
  bool moved = false;
  for (size_t peer = 0; peer < arenas_.size(); ++peer) {
    const int rank = static_cast<int>(peer);
    const bool went = pump_out(rank, outgoing_[peer]);
    const bool came = pump_in(rank, incoming_[peer]);
    if (went || came) {
      ring(rank);  // it has something to read, or room to write
      moved = true;
    }
  }
  return moved;
}

bool Messenger::push(Mailbox& box, Outgoing& out) const {
  const Header header{out.message.bytes, out.message.tag, out.message.type};
  const size_t total = sizeof header + out.message.bytes;
  while (out.sent < total) {
    const bool in_header = out.sent < sizeof header;
    const auto* from =
        in_header ? reinterpret_cast<const std::byte*>(&header) + out.sent
                  : static_cast<const std::byte*>(out.message.data) + (out.sent - sizeof header);
    const size_t left = (in_header ? sizeof header : total) - out.sent;
    const size_t length = box.write(from, left, capacity_);
    if (length == 0) {
      return false;
    }
    out.sent += length;
  }
  return true;
}

bool Messenger::pump_out(int peer, std::deque<Outgoing>& queue) {
  Mailbox& box = mailbox(rank_, peer);
  const uint64_t written = box.written();
  for (Outgoing& out : queue) {
    if (out.end == 0 && !push(box, out)) {
      break;
    }
    out.end = out.end != 0 ? out.end : box.written();
  }
  while (!queue.empty() && queue.front().end != 0 && box.read() >= queue.front().end) {
    finished_.push_back([done = std::move(queue.front().message.done)] { done(""); });
    queue.pop_front();
  }
  return box.written() != written;
}

// Reads only while somebody wants a message: otherwise the sender waits.
bool Messenger::pump_in(int peer, Incoming& from) {
  if (!from.error.empty()) {
    return refuse_all(from);
  }
  Mailbox& box = mailbox(peer, rank_);
  bool moved = deliver_unexpected(from);
  while (!from.wanted.empty()) {
    if (!from.has_begun) {
      const size_t length = box.read(reinterpret_cast<std::byte*>(&from.header) + from.received,
                                     sizeof(Header) - from.received, capacity_);
      from.received += length;
      moved = moved || length > 0;
      if (from.received < sizeof(Header) || !begin_message(from)) {
        return moved;
      }
    }
    std::byte* const target = from.owner != nullptr ? static_cast<std::byte*>(from.owner->data)
                                                    : from.unexpected.back().bytes.data();
    const size_t body = from.received - sizeof(Header);
    const size_t length = box.read(target + body, from.header.bytes - body, capacity_);
    from.received += length;
    moved = moved || length > 0;
    if (body + length < from.header.bytes) {
      return moved;
    }
    end_message(from);
    moved = deliver_unexpected(from) || moved;  // before a later one of the same tag is read
  }
  return moved;
}

std::string Messenger::difference(const Header& header, const Message& wanted) {
  if (header.type == wanted.type && header.bytes == wanted.bytes) {
    return "";
  }
  return fmt::format(
      "the message of rank {} with tag {} has {} elements of {} bytes, this rank wants {} of {}",
      wanted.peer, wanted.tag, header.bytes / element_bytes(header.type),
      element_bytes(header.type), wanted.bytes / element_bytes(wanted.type),
      element_bytes(wanted.type));
}

// The header is here: finds who wants the message. False if it does not fit who does.
bool Messenger::begin_message(Incoming& from) {
  const auto wanted =
      std::find_if(from.wanted.begin(), from.wanted.end(),
                   [&](const Message& message) { return message.tag == from.header.tag; });
  from.has_begun = true;
  if (wanted == from.wanted.end()) {
    from.owner = nullptr;
    from.unexpected.push_back({from.header, std::vector<std::byte>(from.header.bytes)});
    return true;
  }
  from.owner = &*wanted;
  from.error = difference(from.header, *wanted);
  if (!from.error.empty()) {
    refuse_all(from);
    return false;
  }
  return true;
}

// The stream of this rank cannot be read on, and the group ends here: nobody waits for it in vain.
bool Messenger::refuse_all(Incoming& from) {
  const bool moved = !from.wanted.empty();
  for (Message& message : from.wanted) {
    finished_.push_back([done = std::move(message.done), error = from.error] { done(error); });
  }
  from.wanted.clear();
  return moved;
}

void Messenger::end_message(Incoming& from) {
  from.received = 0;
  from.has_begun = false;
  if (from.owner == nullptr) {
    return;
  }
  finished_.push_back([done = std::move(from.owner->done)] { done(""); });
  from.wanted.remove_if([&](const Message& message) { return &message == from.owner; });
}

// Hands out what came before it was wanted, and is whole.
bool Messenger::deliver_unexpected(Incoming& from) {
  bool moved = false;
  const bool last_is_partial = from.has_begun && from.owner == nullptr;
  for (auto wanted = from.wanted.begin(); wanted != from.wanted.end();) {
    const auto arrival =
        std::find_if(from.unexpected.begin(), from.unexpected.end(),
                     [&](const Arrival& item) { return item.header.tag == wanted->tag; });
    const bool is_taken = from.has_begun && from.owner == &*wanted;
    const bool is_whole = arrival != from.unexpected.end() &&
                          !(last_is_partial && std::next(arrival) == from.unexpected.end());
    if (is_taken || !is_whole) {
      ++wanted;
      continue;
    }
    const std::string error = difference(arrival->header, *wanted);
    if (error.empty() && wanted->bytes > 0) {
      std::memcpy(wanted->data, arrival->bytes.data(), wanted->bytes);
    }
    finished_.push_back([done = std::move(wanted->done), error] { done(error); });
    from.unexpected.erase(arrival);
    wanted = from.wanted.erase(wanted);
    moved = true;
  }
  return moved;
}

}  // namespace lockstep::shm
