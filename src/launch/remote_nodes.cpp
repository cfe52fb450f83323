#include "launch/remote_nodes.h"

#include <algorithm>
#include <unistd.h>

#include "launch/host_address.h"

namespace lockstep {

namespace {

constexpr size_t kMaxBacklog = 1 << 20;

}  // namespace

RemoteNodes::RemoteNodes(RemoteNodesOptions options)
    : options_(std::move(options)),
      consoles_{Console({.fd = STDOUT_FILENO, .lock_fd = options_.lock_fd}),
                Console({.fd = STDERR_FILENO, .lock_fd = options_.lock_fd})} {}

void RemoteNodes::start(const HostEntry& host, const std::string& job) {
  nodes_.push_back(std::make_unique<RemoteProcess>(RemoteStart{
      .host = host,
      .program = options_.program,
      .arguments = options_.arguments,
      .ssh = options_.ssh,
      .is_local = is_this_host(host),
      .start_timeout = options_.start_timeout,
  }));
  nodes_.back()->send(job + "\n");
}

bool RemoteNodes::is_quiet() const {
  return nodes_.empty() && consoles_[0].backlog() == 0 && consoles_[1].backlog() == 0;
}

void RemoteNodes::add_polls(std::vector<pollfd>& polls) const {
  for (const Console& console : consoles_) {
    polls.push_back({console.backlog() > 0 ? console.fd() : -1, POLLOUT, 0});
  }
  for (const auto& node : nodes_) {
    node->add_polls(polls, consoles_[0].backlog() < kMaxBacklog,
                    consoles_[1].backlog() < kMaxBacklog);
  }
}

std::vector<RemoteEnd> RemoteNodes::handle(std::span<const pollfd> polls) {
  for (size_t c = 0; c < consoles_.size(); ++c) {
    if (polls[c].revents != 0) {
      consoles_[c].write_some();
    }
  }
  polls = polls.subspan(consoles_.size());
  std::vector<RemoteEnd> ends;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    nodes_[i]->handle(polls.subspan(i * RemoteProcess::kNumPolls, RemoteProcess::kNumPolls),
                      [this](int stream, std::string_view line) {
                        consoles_[static_cast<size_t>(stream - 1)].add("", line);
                      });
    for (size_t c = 0; c < consoles_.size(); ++c) {
      if (consoles_[c].closed()) {
        nodes_[i]->close_output(static_cast<int>(c) + 1);
      }
    }
    if (nodes_[i]->end()) {
      ends.push_back(*nodes_[i]->end());
    }
  }
  std::erase_if(nodes_, [](const auto& node) { return node->end().has_value(); });
  return ends;
}

Deadline RemoteNodes::deadline() const {
  Deadline first = Deadline::never();
  for (const auto& node : nodes_) {
    first = first.earlier(node->deadline());
  }
  return first;
}

void RemoteNodes::close_inputs() {
  for (const auto& node : nodes_) {
    node->close_input();
  }
}

}  // namespace lockstep
