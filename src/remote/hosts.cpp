#include "remote/hosts.h"

#include <algorithm>
#include <cctype>
#include <sstream>

#include <lockstep/base/error.h>

#include "base/env.h"
#include "base/unique_fd.h"

namespace lockstep::remote {

namespace {

// Letters that no shell and no ssh takes for anything else; a dash in front would be an option.
bool is_plain(const std::string& text, const std::string& more) {
  return !text.empty() && text.front() != '-' &&
         std::all_of(text.begin(), text.end(), [&more](unsigned char c) {
           return std::isalnum(c) != 0 || more.find(static_cast<char>(c)) != more.npos;
         });
}

// The number after the separator.
int parse_slots(const std::string& word, char separator, const std::string& where) {
  const auto slots = base::parse_integer(word.substr(word.rfind(separator) + 1), 1, kMaxSlots);
  if (!slots) {
    throw UsageError("{}: {} has no number of slots in [1, {}]", where, word, kMaxSlots);
  }
  return static_cast<int>(*slots);
}

// [user@]host[:slots]
HostEntry parse_host(const std::string& text, const std::string& where) {
  HostEntry host;
  std::string rest = text;
  if (const size_t at = rest.find('@'); at != std::string::npos) {
    host.user = rest.substr(0, at);
    rest.erase(0, at + 1);
    if (!is_plain(host.user, "._-\\")) {
      throw UsageError("{}: {} does not begin with a user's name; write user@host", where, text);
    }
  }
  const bool is_bracketed = rest.starts_with('[') && rest.find(']') != std::string::npos;
  const size_t name_end = is_bracketed ? rest.find(']') + 1 : std::min(rest.find(':'), rest.size());
  host.name = is_bracketed ? rest.substr(1, name_end - 2) : rest.substr(0, name_end);
  rest.erase(0, name_end);
  if (!is_plain(host.name, is_bracketed ? ".:%-_" : ".-_") || rest.find(':', 1) != rest.npos ||
      (!rest.empty() && rest.front() != ':')) {
    throw UsageError(
        "{}: {} is not a host; write host, user@host or host:slots, an IPv6 address "
        "in brackets: [::1]:4",
        where, text.empty() ? "\"\"" : text);
  }
  if (!rest.empty()) {
    host.slots = parse_slots(text, ':', where);
  }
  return host;
}

void add_host(std::vector<HostEntry>& hosts, const HostEntry& host, const std::string& where) {
  const auto same = std::find_if(hosts.begin(), hosts.end(),
                                 [&](const HostEntry& other) { return other.name == host.name; });
  if (same == hosts.end()) {
    hosts.push_back(host);
    return;
  }
  if (same->user != host.user) {
    throw UsageError("{}: {} is there already as {}; a host has one user", where, host.text(),
                     same->text());
  }
  same->slots = std::max(same->slots, 1) + std::max(host.slots, 1);
  if (same->slots > kMaxSlots) {
    throw UsageError("{}: {} has {} slots now, the limit is {}", where, host.name, same->slots,
                     kMaxSlots);
  }
}

// What may follow a host on its line: slots=N and Open MPI's limit, which is never passed, since a
// host gets as many ranks as it has slots.
void read_word(const std::string& word, HostEntry& host, const std::string& where) {
  const std::string key = word.substr(0, word.find('='));
  if (key == "slots" && host.slots == 0) {
    host.slots = parse_slots(word, '=', where);
  } else if (key == "max_slots" || key == "max-slots") {
    if (parse_slots(word, '=', where) < host.slots) {
      throw UsageError("{}: {} is less than slots={}", where, word, host.slots);
    }
  } else {
    throw UsageError("{}: `{}` is not understood; a line is HOST, HOST slots=4 or HOST:4", where,
                     word);
  }
}

}  // namespace

std::vector<HostEntry> parse_hosts(const std::string& list, const std::string& what) {
  std::vector<HostEntry> hosts;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    add_host(hosts, parse_host(list.substr(begin, end - begin), what), what);
    begin = end + 1;
  }
  return hosts;
}

std::vector<HostEntry> read_hostfile(const std::string& path) {
  std::istringstream file(base::read_file(path));
  std::vector<HostEntry> hosts;
  int number = 0;
  for (std::string line; std::getline(file, line);) {
    const std::string where = fmt::format("{}:{}", path, ++number);
    std::istringstream words(line.substr(0, line.find('#')));
    std::string word;
    if (!(words >> word)) {
      continue;
    }
    HostEntry host = parse_host(word, where);
    while (words >> word) {
      read_word(word, host, where);
    }
    add_host(hosts, host, where);
  }
  if (hosts.empty()) {
    throw UsageError("{} names no host; write one per line: HOST slots=4", path);
  }
  return hosts;
}

}  // namespace lockstep::remote
