#include "base/host_list.h"

#include <algorithm>
#include <cctype>

#include <lockstep/base/error.h>

#include "base/env.h"

namespace lockstep::base {

namespace {

constexpr int64_t kMaxNumber = 999999999;  // in a bracket: more than any list can count through
constexpr int kMaxTasks = 65536;           // on a node

[[noreturn]] void refuse(const std::string& what, const std::string& list,
                         const std::string& reason) {
  throw UsageError("{}={} is not a list that Slurm writes: {}", what, list, reason);
}

// Reads a list of hosts from left to right.
class HostListReader {
 public:
  HostListReader(const std::string& list, const std::string& what) : list_(list), what_(what) {}

  std::vector<std::string> read() {
    std::vector<std::string> hosts;
    do {
      const auto more = read_item();
      if (more.size() > kMaxListedHosts - hosts.size()) {
        refuse_size();
      }
      hosts.insert(hosts.end(), more.begin(), more.end());
    } while (take(','));
    return hosts;
  }

 private:
  bool take(char letter) {
    const bool is_here = at_ < list_.size() && list_[at_] == letter;
    at_ += is_here ? 1 : 0;
    return is_here;
  }

  [[noreturn]] void refuse_size() const {
    throw UsageError("{}={} names more than {} hosts", what_, list_, kMaxListedHosts);
  }

  // One host or, with brackets, every combination of what is in them: the last varies fastest.
  std::vector<std::string> read_item() {
    std::vector<std::string> hosts{""};
    const size_t begin = at_;
    while (at_ < list_.size() && list_[at_] != ',') {
      if (take('[')) {
        hosts = combine(hosts, read_bracket());
        continue;
      }
      const char letter = list_[at_++];
      if (std::isalnum(static_cast<unsigned char>(letter)) == 0 && letter != '-' && letter != '.' &&
          letter != '_') {
        refuse(what_, list_, fmt::format("'{}' is in no host name", letter));
      }
      for (auto& host : hosts) {
        host += letter;
      }
    }
    if (at_ == begin) {
      refuse(what_, list_, "a host has no name");
    }
    return hosts;
  }

  std::vector<std::string> combine(const std::vector<std::string>& heads,
                                   const std::vector<std::string>& tails) const {
    if (heads.size() * tails.size() > kMaxListedHosts) {
      refuse_size();
    }
    std::vector<std::string> hosts;
    for (const auto& head : heads) {
      for (const auto& tail : tails) {
        hosts.push_back(head + tail);
      }
    }
    return hosts;
  }

  // After the '[': "001-003,7]".
  std::vector<std::string> read_bracket() {
    std::vector<std::string> numbers;
    do {
      const std::string first = read_digits();
      const std::string last = take('-') ? read_digits() : first;
      const auto low = parse_integer(first, 0, kMaxNumber);
      const auto high = parse_integer(last, 0, kMaxNumber);
      if (!low || !high || *low > *high) {
        refuse(what_, list_, fmt::format("[{}-{}] is no range", first, last));
      }
      if (*high - *low >= kMaxListedHosts - static_cast<int64_t>(numbers.size())) {
        refuse_size();
      }
      for (int64_t number = *low; number <= *high; ++number) {
        numbers.push_back(fmt::format("{:0{}}", number, first.size()));
      }
    } while (take(','));
    if (!take(']')) {
      refuse(what_, list_, "a bracket is not closed");
    }
    return numbers;
  }

  std::string read_digits() {
    const size_t begin = at_;
    while (at_ < list_.size() && std::isdigit(static_cast<unsigned char>(list_[at_])) != 0) {
      ++at_;
    }
    return list_.substr(begin, at_ - begin);
  }

  const std::string& list_;
  const std::string& what_;
  size_t at_ = 0;
};

}  // namespace

std::vector<std::string> expand_host_list(const std::string& list, const std::string& what) {
  return HostListReader(list, what).read();
}

int tasks_on_node(const std::string& list, int node, const std::string& what) {
  int64_t num_before = 0;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    const std::string item = list.substr(begin, end - begin);
    const size_t times_at = item.find("(x");
    const auto tasks = parse_integer(item.substr(0, times_at), 0, kMaxTasks);
    const auto times = times_at == std::string::npos
                           ? std::optional<int64_t>(1)
                           : parse_integer(item.substr(times_at + 2, item.size() - times_at - 3), 1,
                                           kMaxListedHosts);
    if (!tasks || !times || (times_at != std::string::npos && !item.ends_with(')'))) {
      refuse(what, list, fmt::format("'{}' is no number of tasks such as 2 or 2(x3)", item));
    }
    num_before += *times;
    if (node < num_before) {
      return static_cast<int>(*tasks);
    }
    begin = end + 1;
  }
  throw UsageError("{}={} says nothing about node {}", what, list, node);
}

}  // namespace lockstep::base
