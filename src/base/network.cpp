#include "base/network.h"

#include <algorithm>
#include <cerrno>
#include <ifaddrs.h>
#include <memory>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <unistd.h>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "base/hash.h"
#include "base/unique_fd.h"

namespace lockstep::base {

namespace {

std::string numeric(const sockaddr* address) {
  char text[NI_MAXHOST] = {};
  const socklen_t length =
      address->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  if (::getnameinfo(address, length, text, sizeof text, nullptr, 0, NI_NUMERICHOST) != 0) {
    return "";
  }
  return text;
}

}  // namespace

std::vector<OwnAddress> own_addresses() {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) {
    throw IoError("getifaddrs: {}", errno_text(errno));
  }
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> list(first, ::freeifaddrs);
  std::vector<OwnAddress> found;
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* entry = list.get(); entry != nullptr; entry = entry->ifa_next) {
      if (entry->ifa_addr != nullptr && entry->ifa_addr->sa_family == family &&
          (entry->ifa_flags & IFF_UP) != 0) {
        found.push_back({entry->ifa_name, numeric(entry->ifa_addr)});
      }
    }
  }
  return found;
}

bool is_loopback(const std::string& address) {
  return address.starts_with("127.") || address == "::1" || address.starts_with("::ffff:127.");
}

std::string interface_address(const std::string& name, const std::string& what) {
  std::string all;
  for (const OwnAddress& own : own_addresses()) {
    if (name == own.interface || name == own.address) {
      return own.address;
    }
    all += fmt::format("{}{} {}", all.empty() ? "" : ", ", own.interface, own.address);
  }
  throw UsageError("{} {} is neither an interface nor an address of this host; there are: {}", what,
                   name, all);
}

std::vector<std::string> resolve_host(const std::string& name) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* first = nullptr;
  if (::getaddrinfo(name.c_str(), nullptr, &hints, &first) != 0) {
    return {};
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> list(first, ::freeaddrinfo);
  std::vector<std::string> found;
  for (const addrinfo* entry = list.get(); entry != nullptr; entry = entry->ai_next) {
    const std::string address = numeric(entry->ai_addr);
    if (!address.empty() && std::find(found.begin(), found.end(), address) == found.end()) {
      found.push_back(address);
    }
  }
  return found;
}

std::string host_name() {
  char name[256] = "unknown";
  ::gethostname(name, sizeof name - 1);
  return name;
}

bool is_own_address(const std::string& address) {
  if (is_loopback(address)) {
    return true;
  }
  const auto own = own_addresses();
  return std::any_of(own.begin(), own.end(),
                     [&](const OwnAddress& entry) { return entry.address == address; });
}

bool is_this_host(const std::string& name) {
  if (name == "localhost" || name == host_name()) {
    return true;
  }
  const auto addresses = resolve_host(name);
  return std::any_of(addresses.begin(), addresses.end(), is_own_address);
}

uint16_t port_for(const std::string& name) {
  return static_cast<uint16_t>(20000 + fnv1a_32(name) % 12000);
}

}  // namespace lockstep::base
