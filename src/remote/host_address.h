#pragma once

// Which of the hosts this one is, and by which of its addresses the others reach it.

#include <string>
#include <vector>

#include "remote/hosts.h"
#include "remote/ssh.h"

namespace lockstep::remote {

// True for localhost, this host's own name and its addresses, unless another user is named.
bool is_this_host(const HostEntry& host);

// The numeric address of the interface from which packets to `host` leave: a question to the
// kernel's routing table, nothing is sent. A loopback address if `host` is this host. Throws
// IoError if the name does not resolve or there is no way to it.
std::string local_address_towards(const std::string& host);

// The address at which this host waits for the others: the one towards the first of `hosts` that is
// another host, "127.0.0.1" if none is. A name that only ssh's configuration knows is looked up
// there (ssh -G). Throws UsageError, with the way out, if that address cannot be told or is a
// loopback one, which other hosts cannot reach.
std::string rendezvous_address(const std::vector<HostEntry>& hosts, const SshOptions& ssh);

// "eth0", the interface that has this address; empty if none has.
std::string interface_of(const std::string& address);

// The first address of an interface; "" if there is no such interface or it has none.
std::string address_of_interface(const std::string& interface);

// Absolute path of the running program. Throws IoError.
std::string own_program();

}  // namespace lockstep::remote
