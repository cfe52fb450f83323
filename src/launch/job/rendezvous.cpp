#include "launch/job/rendezvous.h"

#include <algorithm>

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

#include "base/network.h"
#include "base/secret.h"

namespace lockstep::launch {

namespace {

base::Endpoint parse_endpoint(const std::string& text) {
  const bool has_port = text.ends_with(']') ? false : text.find_last_of(':') != std::string::npos;
  return base::Endpoint::parse(has_port ? text : fmt::format("{}:{}", text, kDefaultRendezvousPort),
                               "the rendezvous's endpoint");
}

// The user means loopback: a number or "localhost", not a host name that happens to lead there.
bool names_loopback(const std::string& host) {
  return base::is_loopback(host) || host == "localhost";
}

// The one address to listen on. The host's own name may lead to 127.0.1.1 here and to the real
// address elsewhere: then the first address that others can reach counts.
std::string listen_address(const std::string& host, const std::string& local_addr) {
  if (!local_addr.empty()) {
    return local_addr;
  }
  if (names_loopback(host)) {
    return host == "localhost" ? "127.0.0.1" : host;
  }
  for (const std::string& address : base::resolve_host(host)) {
    if (base::is_own_address(address) && !base::is_loopback(address)) {
      return address;
    }
  }
  for (const base::OwnAddress& own : base::own_addresses()) {
    if (!base::is_loopback(own.address) && !own.address.starts_with("fe80:")) {
      log::info("run",
                "{} leads to no address of this host that others can reach: listening on {} ({}); "
                "--local-addr chooses another",
                host, own.address, own.interface);
      return own.address;
    }
  }
  throw UsageError(
      "the head of the job cannot be reached: this host has only loopback addresses; bring a "
      "network up, or name it with --local-addr");
}

}  // namespace

Rendezvous plan_rendezvous(const RendezvousOptions& options, const base::Env& env) {
  Rendezvous rendezvous;
  if (!options.local_addr.empty()) {
    rendezvous.local_addr = base::interface_address(options.local_addr, "--local-addr");
  } else if (const auto wanted = env.text("LOCKSTEP_INTERFACE")) {
    rendezvous.local_addr = base::interface_address(*wanted, "LOCKSTEP_INTERFACE");
  }
  if (options.endpoint.empty()) {
    rendezvous.job_id = options.job_id.empty() ? base::make_job_id() : options.job_id;
    rendezvous.secret = own_job_secret(options.secret_file);
    rendezvous.endpoints = {{"127.0.0.1", 0}};
    return rendezvous;
  }
  const base::Endpoint endpoint = parse_endpoint(options.endpoint);
  if (endpoint.port == 0) {
    throw UsageError(
        "the endpoint {} needs a port: the nodes must agree on it before their rendezvous",
        options.endpoint);
  }
  rendezvous.job_id = options.job_id.empty() ? "none" : options.job_id;
  rendezvous.secret = options.secret.empty()
                          ? job_secret(options.secret_file, rendezvous.job_id, env)
                          : options.secret;
  rendezvous.is_head = options.is_head.value_or(base::is_this_host(endpoint.host));
  rendezvous.may_join = !options.is_head.has_value();
  const std::string host =
      rendezvous.is_head ? listen_address(endpoint.host, rendezvous.local_addr) : endpoint.host;
  for (int i = 0; i < options.num_ports; ++i) {
    rendezvous.endpoints.push_back({host, static_cast<uint16_t>(endpoint.port + i)});
  }
  return rendezvous;
}

}  // namespace lockstep::launch
