#include "base/store/store_table.h"

#include <algorithm>

#include <lockstep/base/error.h>

#include "base/env.h"

namespace lockstep::base::store {
namespace {

Message reply_text(Kind kind, std::string_view text) {
  return {kind, 0, Writer().text(text).take()};
}
Message reply_number(int64_t number) {
  return {Kind::Number, 0, Writer().i64(number).take()};
}
Message reply_error(const std::string& text) {
  return reply_text(Kind::Error, text);
}

std::string read_key(Reader& in) {
  std::string key = in.text();
  if (key.size() > kMaxKeyBytes) {
    throw FormatError("store: a key of {} bytes, at most {} are allowed", key.size(), kMaxKeyBytes);
  }
  return key;
}

Message lost_event(const std::string& group, int64_t rank, const std::string& who) {
  return {Kind::Lost, 0, Writer().text(group).i64(rank).text(who).take()};
}

}  // namespace

std::vector<Outgoing> Table::handle(ClientId client, const Message& request) {
  std::vector<Outgoing> out;
  Message reply = apply(client, request, out);
  if (reply.kind != Kind::Cancel) {  // stands for "no reply (now)"
    reply.id = request.id;
    out.push_back({client, std::move(reply)});
  }
  return out;
}

Message Table::apply(ClientId client, const Message& request, std::vector<Outgoing>& out) {
  const Message no_reply{Kind::Cancel, 0, {}};
  Reader in(request.body);
  switch (request.kind) {
    case Kind::Set:
    case Kind::Append: {
      const std::string key = read_key(in);
      std::string value = in.text();
      const auto old = values_.find(key);
      const size_t old_size = old == values_.end() ? 0 : old->second.size();
      if (request.kind == Kind::Append && old != values_.end()) {
        value.insert(0, old->second);
      }
      if (total_bytes_ - old_size + value.size() + key.size() > max_total_bytes_) {
        return reply_error(fmt::format("the store is full: {} bytes are held and {} allowed",
                                       total_bytes_, max_total_bytes_));
      }
      store(key, std::move(value), out);
      return {Kind::Done, 0, {}};
    }
    case Kind::Get:
    case Kind::TryGet: {
      const std::string key = read_key(in);
      const auto found = values_.find(key);
      if (found != values_.end()) {
        return reply_text(Kind::Value, found->second);
      }
      if (request.kind == Kind::TryGet) {
        return {Kind::None, 0, {}};
      }
      waiters_[key].push_back({client, request.id});
      return no_reply;
    }
    case Kind::Cancel: {
      const auto id = static_cast<uint64_t>(in.i64());
      for (auto entry = waiters_.begin(); entry != waiters_.end();) {
        std::erase_if(entry->second,
                      [&](const Waiter& w) { return w.client == client && w.id == id; });
        entry = entry->second.empty() ? waiters_.erase(entry) : std::next(entry);
      }
      return no_reply;
    }
    case Kind::Add: {
      const std::string key = read_key(in);
      const int64_t delta = in.i64();
      const auto found = values_.find(key);
      const auto old =
          found == values_.end() ? 0 : parse_integer(found->second, INT64_MIN, INT64_MAX);
      int64_t sum = 0;
      if (!old || __builtin_add_overflow(*old, delta, &sum)) {
        return reply_error(fmt::format(
            "cannot add {} to {}: it does not hold a number that allows it", delta, key));
      }
      store(key, std::to_string(sum), out);
      return reply_number(sum);
    }
    case Kind::CompareSet: {
      const std::string key = read_key(in);
      const std::string expected = in.text();
      std::string desired = in.text();
      const auto found = values_.find(key);
      // As c10d's stores: an absent key equals the empty text.
      if (found == values_.end() ? expected.empty() : found->second == expected) {
        store(key, desired, out);
        return reply_text(Kind::Value, desired);
      }
      return reply_text(Kind::Value, found == values_.end() ? expected : found->second);
    }
    case Kind::Erase: {
      const auto found = values_.find(read_key(in));
      if (found == values_.end()) {
        return reply_number(0);
      }
      total_bytes_ -= found->first.size() + found->second.size();
      values_.erase(found);
      return reply_number(1);
    }
    case Kind::ErasePrefix: {
      const std::string prefix = read_key(in);
      return reply_number(erase_from(values_.lower_bound(prefix), prefix));
    }
    case Kind::Count:
      return reply_number(static_cast<int64_t>(values_.size()));
    case Kind::Join:
      join(client, in, out);
      return {Kind::Done, 0, {}};
    case Kind::Leave:
      leave(client, in);
      return {Kind::Done, 0, {}};
    case Kind::Note:
      relay(client, in, out);
      return no_reply;
    default:
      throw FormatError("store: a request of unknown kind {}", static_cast<int>(request.kind));
  }
}

void Table::store(const std::string& key, std::string value, std::vector<Outgoing>& out) {
  const auto [entry, is_new] = values_.try_emplace(key);
  total_bytes_ += is_new ? key.size() : 0;
  total_bytes_ += value.size() - entry->second.size();
  entry->second = std::move(value);
  const auto waiting = waiters_.find(key);
  if (waiting == waiters_.end()) {
    return;
  }
  for (const Waiter& waiter : waiting->second) {
    Message reply = reply_text(Kind::Value, entry->second);
    reply.id = waiter.id;
    out.push_back({waiter.client, std::move(reply)});
  }
  waiters_.erase(waiting);
}

int64_t Table::erase_from(std::map<std::string, std::string>::iterator first,
                          const std::string& prefix) {
  int64_t count = 0;
  while (first != values_.end() && first->first.compare(0, prefix.size(), prefix) == 0) {
    total_bytes_ -= first->first.size() + first->second.size();
    first = values_.erase(first);
    ++count;
  }
  return count;
}

void Table::join(ClientId client, Reader& in, std::vector<Outgoing>& out) {
  const std::string group = read_key(in);
  const int64_t rank = in.i64();
  Members& members = groups_[group];
  members.present[rank] = {client, in.text()};
  for (const auto& [lost_rank, who] : members.lost) {
    out.push_back({client, lost_event(group, lost_rank, who)});
  }
}

void Table::leave(ClientId client, Reader& in) {
  const auto group = groups_.find(read_key(in));
  const int64_t rank = in.i64();
  if (group == groups_.end()) {
    return;
  }
  const auto member = group->second.present.find(rank);
  if (member != group->second.present.end() && member->second.client == client) {
    group->second.present.erase(member);
  }
  if (group->second.present.empty() && group->second.lost.empty()) {
    groups_.erase(group);
  }
}

void Table::relay(ClientId client, Reader& in, std::vector<Outgoing>& out) {
  const std::string group = read_key(in);
  const int64_t from = in.i64();
  const int64_t to = in.i64();
  const std::string text = in.text();
  const auto found = groups_.find(group);
  if (found == groups_.end()) {
    return;
  }
  const auto sender = found->second.present.find(from);
  if (sender == found->second.present.end() || sender->second.client != client) {
    return;  // a member speaks only for itself
  }
  const Message event{Kind::Noted, 0, Writer().text(group).i64(from).text(text).take()};
  for (const auto& [rank, member] : found->second.present) {
    if (rank != from && (to == kToAll || to == rank)) {
      out.push_back({member.client, event});
    }
  }
}

std::vector<Outgoing> Table::announce(const std::string& group, const std::string& text) const {
  std::vector<Outgoing> out;
  const auto found = groups_.find(group);
  if (found != groups_.end()) {
    const Message event{Kind::Noted, 0, Writer().text(group).i64(-1).text(text).take()};
    for (const auto& [rank, member] : found->second.present) {
      out.push_back({member.client, event});
    }
  }
  return out;
}

std::optional<std::string> Table::find(const std::string& key) const {
  const auto found = values_.find(key);
  return found != values_.end() ? std::optional(found->second) : std::nullopt;
}

size_t Table::num_members(const std::string& group) const {
  const auto found = groups_.find(group);
  return found == groups_.end() ? 0 : found->second.present.size();
}

std::vector<Outgoing> Table::drop(ClientId client) {
  for (auto entry = waiters_.begin(); entry != waiters_.end();) {
    std::erase_if(entry->second, [&](const Waiter& w) { return w.client == client; });
    entry = entry->second.empty() ? waiters_.erase(entry) : std::next(entry);
  }
  std::vector<Outgoing> out;
  for (auto group = groups_.begin(); group != groups_.end();) {
    Members& members = group->second;
    std::vector<std::pair<int64_t, std::string>> gone;
    for (auto member = members.present.begin(); member != members.present.end();) {
      if (member->second.client == client) {
        gone.emplace_back(member->first, member->second.who);
        member = members.present.erase(member);
      } else {
        ++member;
      }
    }
    for (const auto& [rank, who] : gone) {
      members.lost[rank] = who;
      for (const auto& [other, member] : members.present) {
        out.push_back({member.client, lost_event(group->first, rank, who)});
      }
    }
    // A group with a loss is remembered: whoever joins late must hear of it.
    const bool is_over = members.present.empty() && members.lost.empty();
    group = is_over ? groups_.erase(group) : std::next(group);
  }
  return out;
}

}  // namespace lockstep::base::store
