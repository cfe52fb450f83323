#include "remote/host_address.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <functional>
#include <memory>
#include <netdb.h>
#include <netinet/in.h>
#include <pwd.h>
#include <sstream>
#include <sys/socket.h>
#include <unistd.h>

#include <lockstep/base/error.h>

#include "base/network.h"
#include "base/process/process.h"
#include "base/unique_fd.h"

namespace lockstep::remote {

namespace {

constexpr auto kSshTime = std::chrono::seconds(5);
constexpr const char* kAnyPort = "9";  // nothing is sent there

using AddressList = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

// Empty if the name does not resolve; `why` then says why.
AddressList resolve(const std::string& name, std::string& why) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* list = nullptr;
  const int error = ::getaddrinfo(name.c_str(), kAnyPort, &hints, &list);
  if (error != 0) {
    why = error == EAI_SYSTEM ? base::errno_text(errno) : ::gai_strerror(error);
    return {nullptr, &::freeaddrinfo};
  }
  return {list, &::freeaddrinfo};
}

std::string numeric(const sockaddr* address, socklen_t size) {
  char text[NI_MAXHOST] = "";
  ::getnameinfo(address, size, text, sizeof text, nullptr, 0, NI_NUMERICHOST);
  return text;
}

// What ssh's configuration calls this host's HostName; the name itself if it has none to offer.
std::string ssh_host_name(const HostEntry& host, const SshOptions& ssh) {
  std::vector<std::string> argv = ssh.program;
  argv.insert(argv.end(), {"-G", host.name});
  try {
    std::istringstream lines(
        base::run_process({.argv = argv}, base::Deadline::after(kSshTime)).out);
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with("hostname ")) {
        return line.substr(line.find(' ') + 1);
      }
    }
  } catch (const IoError&) {
    // No such program: the caller will say what it cannot resolve.
  }
  return host.name;
}

}  // namespace

bool is_this_host(const HostEntry& host) {
  if (!host.user.empty()) {
    const passwd* me = ::getpwuid(::geteuid());
    if (me == nullptr || host.user != me->pw_name) {
      return false;
    }
  }
  return base::is_this_host(host.name);
}

std::string local_address_towards(const std::string& host) {
  std::string why;
  const AddressList list = resolve(host, why);
  for (const addrinfo* item = list.get(); item != nullptr; item = item->ai_next) {
    const base::UniqueFd fd(::socket(item->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_storage own{};
    socklen_t size = sizeof own;
    if (fd && ::connect(fd.get(), item->ai_addr, item->ai_addrlen) == 0 &&
        ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&own), &size) == 0) {
      return numeric(reinterpret_cast<const sockaddr*>(&own), size);
    }
    why = base::errno_text(errno);
  }
  throw IoError("cannot tell by which address of this host {} is reached: {}", host, why);
}

std::string rendezvous_address(const std::vector<HostEntry>& hosts, const SshOptions& ssh) {
  const auto other = std::find_if_not(hosts.begin(), hosts.end(),
                                      [](const HostEntry& host) { return is_this_host(host); });
  if (other == hosts.end()) {
    return "127.0.0.1";
  }
  std::string why;
  const std::string name = resolve(other->name, why) ? other->name : ssh_host_name(*other, ssh);
  std::string address;
  try {
    address = local_address_towards(name);
  } catch (const IoError& error) {
    throw UsageError("{}; give this host's address or interface by --local-addr", error.what());
  }
  if (base::is_loopback(address)) {
    throw UsageError(
        "{} is reached through {}, an address that no other host can reach (a tunnel?); "
        "give this host's address or interface by --local-addr",
        other->name, address);
  }
  return address;
}

std::string interface_of(const std::string& address) {
  for (const base::OwnAddress& entry : base::own_addresses()) {
    if (entry.address == address) {
      return entry.interface;
    }
  }
  return "";
}

std::string address_of_interface(const std::string& interface) {
  for (const base::OwnAddress& entry : base::own_addresses()) {
    if (entry.interface == interface) {
      return entry.address;
    }
  }
  return "";
}

}  // namespace lockstep::remote
