// The flags of `lockstep run` about the rendezvous of the nodes.

#include <algorithm>
#include <cctype>

#include <lockstep/base/error.h>

#include "base/config.h"
#include "base/env.h"
#include "launch/flags/run_flags.h"

namespace lockstep::launch {

namespace {

constexpr uint16_t kDefaultMasterPort = 29500;  // as torchrun's static
constexpr size_t kMaxJobId = 128;

bool is_true(const std::string& flag, const std::string& text) {
  try {
    return *base::Env([&](const std::string&) { return text; }).flag("");
  } catch (const UsageError&) {
    throw UsageError("{} {} is neither true nor false", flag, text);
  }
}

// "host", "host:port", "[v6]", "[v6]:port" or a bare IPv6 address.
base::Endpoint parse_endpoint(const std::string& flag, const std::string& text,
                              uint16_t default_port) {
  const bool bare_v6 = !text.starts_with('[') && std::count(text.begin(), text.end(), ':') > 1;
  if (bare_v6) {
    return {text, default_port};
  }
  const bool has_port = text.find(':', std::min(text.find(']'), text.size())) != std::string::npos;
  const bool has_name_port = !text.starts_with('[') && text.find(':') != std::string::npos;
  return base::Endpoint::parse(
      has_port || has_name_port ? text : text + ":" + std::to_string(default_port), flag);
}

// True if nodes are told their places; false if they take them in the order in which they join.
bool is_static(const RunFlags& flags) {
  const std::string& backend = flags.rdzv_backend;
  if (backend.starts_with("etcd")) {
    throw UsageError(
        "--rdzv-backend {} is a server that lockstep does not speak to; with lockstep or c10d the "
        "node at --rdzv-endpoint does its work",
        backend);
  }
  if (!backend.empty() && backend != "static" && backend != "lockstep" && backend != "c10d") {
    throw UsageError("--rdzv-backend {} is unknown; it is static, lockstep or c10d", backend);
  }
  return backend.empty() ? flags.rdzv_endpoint.empty() : backend == "static";
}

void set_conf(const std::string& key, const std::string& value, RendezvousOptions& rendezvous) {
  static const std::vector<std::string> kKeys = {"timeout",
                                                 "join_timeout",
                                                 "last_call_timeout",
                                                 "heartbeat_timeout",
                                                 "is_host",
                                                 "store_type",
                                                 "close_timeout",
                                                 "read_timeout",
                                                 "keep_alive_interval",
                                                 "keep_alive_max_attempt",
                                                 "use_libuv"};
  const std::string flag = "--rdzv-conf " + key;
  if (key == "timeout" || key == "join_timeout") {
    rendezvous.join_timeout = flag_seconds(flag, value);
  } else if (key == "last_call_timeout") {
    rendezvous.last_call = flag_seconds(flag, value);
  } else if (key == "heartbeat_timeout") {
    rendezvous.lost_after = flag_seconds(flag, value);
    if (rendezvous.lost_after == rendezvous.lost_after.zero()) {
      throw UsageError("{} is 0: every node would be lost at once", flag);
    }
  } else if (key == "is_host") {
    rendezvous.is_head = is_true(flag, value);
  } else if (key == "store_type" && value != "tcp") {
    throw UsageError("{} {}: the rendezvous uses TCP only; leave the key out", flag, value);
  } else if (std::find(kKeys.begin(), kKeys.end(), key) == kKeys.end()) {
    const std::string near = base::nearest(key, kKeys);
    throw UsageError("--rdzv-conf has no key {}{}", key,
                     near.empty() ? "" : "; did you mean " + near + "?");
  }  // the others tune what lockstep does not have: they are accepted, and change nothing
}

void read_conf(const std::string& text, RendezvousOptions& rendezvous) {
  for (const std::string& item : split_list(text)) {
    const size_t equals = item.find('=');
    if (equals == std::string::npos || equals == 0 || equals + 1 == item.size()) {
      throw UsageError("--rdzv-conf {} is not KEY=VALUE,KEY=VALUE: {} lacks a key or a value", text,
                       item);
    }
    set_conf(item.substr(0, equals), item.substr(equals + 1), rendezvous);
  }
}

// The id names a folder and goes over the network.
std::string checked_job_id(const std::string& id) {
  const bool is_plain = std::all_of(id.begin(), id.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.' || c == ':' || c == '+' ||
           c == '@';
  });
  if (!is_plain || id.size() > kMaxJobId || id == "." || id == "..") {
    throw UsageError(
        "--rdzv-id {} cannot name a job: at most {} letters, digits and - _ . : + @ can", id,
        kMaxJobId);
  }
  return id;
}

std::string static_endpoint(const RunFlags& flags) {
  if (!flags.rdzv_endpoint.empty()) {
    return parse_endpoint("--rdzv-endpoint", flags.rdzv_endpoint, kDefaultMasterPort).text();
  }
  if (flags.master_addr.empty()) {
    throw UsageError(
        "--nnodes {} needs --master-addr, the address of node 0 (or --rdzv-endpoint HOST:PORT, "
        "the same on every node)",
        flags.nnodes);
  }
  base::Endpoint head = parse_endpoint("--master-addr", flags.master_addr, kDefaultMasterPort);
  if (!flags.master_port.empty()) {
    head.port =
        static_cast<uint16_t>(flag_number("--master-port", flags.master_port, 1, UINT16_MAX));
  }
  return head.text();
}

void check_one_head(const RunFlags& flags) {
  if (flags.rdzv_endpoint.empty() || flags.master_addr.empty()) {
    return;
  }
  const base::Endpoint master = parse_endpoint("--master-addr", flags.master_addr, 0);
  const base::Endpoint head = parse_endpoint("--rdzv-endpoint", flags.rdzv_endpoint, 0);
  if (master.host != head.host) {
    throw UsageError("--master-addr {} and --rdzv-endpoint {} name two heads; give one of them",
                     flags.master_addr, flags.rdzv_endpoint);
  }
}

void set_static(const RunFlags& flags, NodeRange nodes, RendezvousOptions& rendezvous) {
  if (nodes.min != nodes.max) {
    throw UsageError(
        "--nnodes {}: nodes can join and leave only if they take their places in the order of "
        "joining; give --rdzv-backend lockstep --rdzv-endpoint HOST:PORT",
        flags.nnodes);
  }
  if (rendezvous.node_rank < 0) {
    throw UsageError(
        "--nnodes {} needs --node-rank, this node's number in [0, {}) (or --rdzv-backend lockstep "
        "--rdzv-endpoint HOST:PORT, which needs none)",
        flags.nnodes, nodes.max);
  }
  rendezvous.endpoint = static_endpoint(flags);
  rendezvous.is_head = rendezvous.node_rank == 0;
}

void set_dynamic(const RunFlags& flags, RendezvousOptions& rendezvous) {
  if (flags.rdzv_endpoint.empty()) {
    throw UsageError(
        "--rdzv-backend {} with --nnodes {} needs --rdzv-endpoint HOST[:PORT], the same on every "
        "node: one of them is the head and listens there",
        flags.rdzv_backend, flags.nnodes);
  }
  rendezvous.endpoint =
      parse_endpoint("--rdzv-endpoint", flags.rdzv_endpoint, kDefaultRendezvousPort).text();
}

}  // namespace

RendezvousOptions rendezvous_options(const RunFlags& flags, NodeRange nodes) {
  RendezvousOptions rendezvous{.local_addr = flags.local_addr, .secret_file = flags.secret_file};
  read_conf(flags.rdzv_conf, rendezvous);
  const bool fixed_places = is_static(flags);
  if (flags.standalone && nodes.max > 1) {
    throw UsageError("--standalone is a job of one node and --nnodes {} is not; give one of them",
                     flags.nnodes);
  }
  rendezvous.job_id = checked_job_id(flags.rdzv_id);
  if (!flags.node_rank.empty()) {
    rendezvous.node_rank = flag_number("--node-rank", flags.node_rank, 0, nodes.max - 1);
  }
  if (nodes.max == 1) {
    return rendezvous;
  }
  if (rendezvous.job_id.empty()) {
    rendezvous.job_id = "none";  // as torchrun: the same on every node
  }
  check_one_head(flags);
  if (fixed_places) {
    set_static(flags, nodes, rendezvous);
  } else {
    set_dynamic(flags, rendezvous);
  }
  return rendezvous;
}

}  // namespace lockstep::launch
