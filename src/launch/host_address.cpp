#include "launch/host_address.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <functional>
#include <ifaddrs.h>
#include <memory>
#include <netdb.h>
#include <netinet/in.h>
#include <pwd.h>
#include <sstream>
#include <sys/socket.h>
#include <unistd.h>

#include <lockstep/base/error.h>

#include "base/process.h"
#include "base/unique_fd.h"

namespace lockstep {

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
    why = error == EAI_SYSTEM ? errno_text(errno) : ::gai_strerror(error);
    return {nullptr, &::freeaddrinfo};
  }
  return {list, &::freeaddrinfo};
}

std::string numeric(const sockaddr* address, socklen_t size) {
  char text[NI_MAXHOST] = "";
  ::getnameinfo(address, size, text, sizeof text, nullptr, 0, NI_NUMERICHOST);
  return text;
}

struct InterfaceAddress {
  std::string interface;
  std::string address;
};

std::vector<InterfaceAddress> own_addresses() {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) {
    return {};
  }
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(list, &::freeifaddrs);
  std::vector<InterfaceAddress> found;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    const int family = entry->ifa_addr == nullptr ? AF_UNSPEC : entry->ifa_addr->sa_family;
    if (family == AF_INET || family == AF_INET6) {
      const socklen_t size = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
      found.push_back({entry->ifa_name, numeric(entry->ifa_addr, size)});
    }
  }
  return found;
}

// What ssh's configuration calls this host's HostName; the name itself if it has none to offer.
std::string ssh_host_name(const HostEntry& host, const SshOptions& ssh) {
  std::vector<std::string> argv = ssh.program;
  argv.insert(argv.end(), {"-G", host.name});
  try {
    std::istringstream lines(run_process({.argv = argv}, Deadline::after(kSshTime)).out);
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

bool is_loopback(const std::string& address) {
  return address.starts_with("127.") || address == "::1";
}

bool is_this_host(const HostEntry& host) {
  if (!host.user.empty()) {
    const passwd* me = ::getpwuid(::geteuid());
    if (me == nullptr || host.user != me->pw_name) {
      return false;
    }
  }
  char name[256] = "";
  ::gethostname(name, sizeof name - 1);
  if (host.name == "localhost" || host.name == name) {
    return true;
  }
  const auto own = own_addresses();
  std::string why;
  const AddressList list = resolve(host.name, why);
  for (const addrinfo* item = list.get(); item != nullptr; item = item->ai_next) {
    const std::string address = numeric(item->ai_addr, item->ai_addrlen);
    if (is_loopback(address) || std::any_of(own.begin(), own.end(), [&](const auto& entry) {
          return entry.address == address;
        })) {
      return true;
    }
  }
  return false;
}

std::string local_address_towards(const std::string& host) {
  std::string why;
  const AddressList list = resolve(host, why);
  for (const addrinfo* item = list.get(); item != nullptr; item = item->ai_next) {
    const UniqueFd fd(::socket(item->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_storage own{};
    socklen_t size = sizeof own;
    if (fd && ::connect(fd.get(), item->ai_addr, item->ai_addrlen) == 0 &&
        ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&own), &size) == 0) {
      return numeric(reinterpret_cast<const sockaddr*>(&own), size);
    }
    why = errno_text(errno);
  }
  throw IoError("cannot tell by which address of this host {} is reached: {}", host, why);
}

std::string meeting_address(const std::vector<HostEntry>& hosts, const SshOptions& ssh) {
  const auto other = std::find_if_not(hosts.begin(), hosts.end(), is_this_host);
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
  if (is_loopback(address)) {
    throw UsageError(
        "{} is reached through {}, an address that no other host can reach (a tunnel?); "
        "give this host's address or interface by --local-addr",
        other->name, address);
  }
  return address;
}

std::string interface_of(const std::string& address) {
  for (const InterfaceAddress& entry : own_addresses()) {
    if (entry.address == address) {
      return entry.interface;
    }
  }
  return "";
}

std::string address_of_interface(const std::string& interface) {
  for (const InterfaceAddress& entry : own_addresses()) {
    if (entry.interface == interface) {
      return entry.address;
    }
  }
  return "";
}

std::string own_program() {
  std::error_code error;
  const auto path = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) {
    throw IoError("cannot read /proc/self/exe, the path of this program: {}", error.message());
  }
  return path;
}

}  // namespace lockstep
