#include "comm/start/hosts.h"

#include <algorithm>
#include <map>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include <lockstep/base/error.h>

#include "base/env.h"
#include "base/network.h"

namespace lockstep::comm {
namespace {

using Json = nlohmann::json;

std::string read_link(const char* path) {
  char target[256] = {};
  const ssize_t length = ::readlink(path, target, sizeof target - 1);
  return length > 0 ? std::string(target, static_cast<size_t>(length)) : "";
}

std::string boot_id() {
  std::string text = base::read_file("/proc/sys/kernel/random/boot_id", 4096);
  text.erase(std::remove(text.begin(), text.end(), '\n'), text.end());
  return text;
}

}  // namespace

std::string Host::to_json() const {
  return Json{{"id", id}, {"name", name}, {"local", local}, {"store", store}, {"if", interface}}
      .dump();
}

Host Host::from_json(const std::string& text) {
  const Json json = Json::parse(text);
  return {json.at("id"), json.at("name"), json.at("local"), json.at("store"), json.at("if")};
}

Host describe_host(const Store& store) {
  const base::Env env;
  Host host;
  host.name = base::host_name();
  // Abstract sockets, by which memory is passed, end at the network namespace.
  host.id = fmt::format("{} {} {} {}", boot_id(), read_link("/proc/self/ns/net"),
                        read_link("/proc/self/ns/user"), env.text("LOCKSTEP_NODE_ID").value_or(""));
  host.local = store.client()->local_host();
  host.store = store.client()->peer_host();
  for (const char* variable : {"LOCKSTEP_INTERFACE", "GLOO_SOCKET_IFNAME"}) {
    if (const auto wanted = env.text(variable); wanted && host.interface.empty()) {
      host.interface = base::interface_address(wanted->substr(0, wanted->find(',')),
                                               fmt::format("init: {} =", variable));
    }
  }
  return host;
}

std::string reachable_address(const std::vector<Host>& hosts, int rank) {
  const Host& self = hosts.at(static_cast<size_t>(rank));
  if (!self.interface.empty()) {
    return self.interface;
  }
  // Emulated nodes share the network, so loopback is fine among them too.
  const auto network_of = [](const Host& host) {
    return host.id.substr(0, host.id.find(' ', host.id.find(' ') + 1));
  };
  const bool is_one_network = std::all_of(hosts.begin(), hosts.end(), [&](const Host& host) {
    return network_of(host) == network_of(self);
  });
  if (is_one_network || !base::is_loopback(self.local)) {
    return self.local;
  }
  for (const Host& other : hosts) {
    if (network_of(other) != network_of(self) && !base::is_loopback(other.store)) {
      return other.store;
    }
  }
  throw UsageError(
      "init: rank {} on {} knows only the loopback address {} of itself, which other hosts cannot "
      "reach; set LOCKSTEP_INTERFACE to the network between the hosts (say, eth0)",
      rank, self.name, self.local);
}

bool NodeMap::is_even() const {
  return std::all_of(ranks.begin(), ranks.end(),
                     [this](const auto& node) { return node.size() == ranks.front().size(); });
}

bool NodeMap::is_in_blocks() const {
  return std::is_sorted(node_of.begin(), node_of.end());
}

size_t NodeMap::fewest_ranks() const {
  size_t fewest = ranks.front().size();
  for (const auto& node : ranks) {
    fewest = std::min(fewest, node.size());
  }
  return fewest;
}

NodeMap map_nodes(const std::vector<Host>& hosts) {
  NodeMap map;
  std::map<std::string, int> nodes;
  for (size_t rank = 0; rank < hosts.size(); ++rank) {
    const auto [entry, is_new] = nodes.emplace(hosts[rank].id, map.num_nodes());
    if (is_new) {
      map.ranks.emplace_back();
    }
    map.node_of.push_back(entry->second);
    map.ranks[static_cast<size_t>(entry->second)].push_back(static_cast<int>(rank));
  }
  return map;
}

}  // namespace lockstep::comm
