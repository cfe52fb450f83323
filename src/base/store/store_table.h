#pragma once

// What the store knows and how it answers: no sockets, no threads, so that every rule can be tested
// alone.

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/store/store_protocol.h"

namespace lockstep::base::store {

using ClientId = uint64_t;

// A message to send, and to whom.
struct Outgoing {
  ClientId to = 0;
  Message message;
};

class Table {
 public:
  explicit Table(size_t max_total_bytes) : max_total_bytes_(max_total_bytes) {}

  // Answers one request. A malformed one throws FormatError: the caller drops the client.
  std::vector<Outgoing> handle(ClientId client, const Message& request);

  // The connection ended: its waits are dropped; a member that had not left is lost, and the others
  // of its groups are told.
  std::vector<Outgoing> drop(ClientId client);

  // A note to every member of `group` from outside of it (`from`: -1).
  std::vector<Outgoing> announce(const std::string& group, const std::string& text) const;
  size_t num_members(const std::string& group) const;

  std::optional<std::string> find(const std::string& key) const;
  size_t num_keys() const { return values_.size(); }

 private:
  struct Member {
    ClientId client = 0;
    std::string who;  // "host a, pid 12"
  };
  struct Members {
    std::map<int64_t, Member> present;
    std::map<int64_t, std::string> lost;  // rank -> who: told to those who join later
  };
  struct Waiter {
    ClientId client = 0;
    uint64_t id = 0;
  };

  Message apply(ClientId client, const Message& request, std::vector<Outgoing>& out);
  void store(const std::string& key, std::string value, std::vector<Outgoing>& out);
  int64_t erase_from(std::map<std::string, std::string>::iterator first, const std::string& prefix);
  void join(ClientId client, Reader& in, std::vector<Outgoing>& out);
  void leave(ClientId client, Reader& in);
  void relay(ClientId client, Reader& in, std::vector<Outgoing>& out);

  size_t max_total_bytes_;
  size_t total_bytes_ = 0;
  std::map<std::string, std::string> values_;
  std::map<std::string, std::vector<Waiter>> waiters_;  // by key
  std::map<std::string, Members> groups_;
};

}  // namespace lockstep::base::store
