#pragma once

// The addresses of this host.

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::base {

struct OwnAddress {
  std::string interface;  // "eth0"
  std::string address;    // numeric
};

// The addresses of every interface that is up, IPv4 first.
std::vector<OwnAddress> own_addresses();

// 127.x, ::1: no other host can reach it. Debian gives 127.0.1.1 to the host's own name.
bool is_loopback(const std::string& address);

// The address of the interface `name` ("eth0"), or `name` itself if it is an address of this host.
// Throws UsageError, listing what there is, and naming `what` asked for it.
std::string interface_address(const std::string& name, const std::string& what);

// What a name resolves to, numeric, without repetitions; empty if it does not.
std::vector<std::string> resolve_host(const std::string& name);

std::string host_name();

// An address of one of this host's interfaces; every loopback address is.
bool is_own_address(const std::string& address);

// localhost, this host's own name or one of its addresses, or a name that leads to one.
bool is_this_host(const std::string& name);

// A port computed from a name: where processes meet that know nothing but their job's name. In
// [20000, 32000), below the range that Linux gives out by default.
uint16_t port_for(const std::string& name);

}  // namespace lockstep::base
