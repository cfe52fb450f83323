#include "remote/remote_nodes.h"

#include <algorithm>
#include <unistd.h>

#include "remote/host_address.h"

namespace lockstep::remote {

namespace {

constexpr size_t kMaxBacklog = 1 << 20;

}  // namespace

RemoteNodes::RemoteNodes(RemoteNodesOptions options)
    : options_(std::move(options)),
      consoles_{base::Console({.fd = STDOUT_FILENO, .board = options_.board}),
                base::Console({.fd = STDERR_FILENO, .board = options_.board})} {}

void RemoteNodes::start(const HostEntry& host, const std::string& job) {
  nodes_.push_back(std::make_unique<RemoteProcess>(RemoteStart{
      .host = host,
      .program = options_.program,
      .arguments = options_.arguments,
      .ssh = options_.ssh,
      .is_local = is_this_host(host),
      .start_timeout = options_.start_timeout,
      .number = num_started_++,
      .gives_parts = true,
  }));
  nodes_.back()->send(job + "\n");
}

// What the host's agent wrote: prefixes and line ends are in it.
void RemoteNodes::take(int64_t writer, int stream, std::string_view text) {
  bool& after_return = after_return_[writer];
  consoles_[static_cast<size_t>(stream - 1)].add({.writer = writer,
                                                  .text = text,
                                                  .is_open = !text.ends_with('\n'),
                                                  .is_redraw = after_return});
  after_return = text.ends_with('\r');
}

bool RemoteNodes::is_quiet() const {
  return nodes_.empty() && consoles_[0].backlog() == 0 && consoles_[1].backlog() == 0;
}

void RemoteNodes::add_polls(std::vector<pollfd>& polls) const {
  for (const base::Console& console : consoles_) {
    polls.push_back({console.backlog() > 0 && !console.is_busy() ? console.fd() : -1, POLLOUT, 0});
  }
  for (const auto& node : nodes_) {
    node->add_polls(polls, consoles_[0].backlog() < kMaxBacklog,
                    consoles_[1].backlog() < kMaxBacklog);
  }
}

std::vector<RemoteEnd> RemoteNodes::handle(std::span<const pollfd> polls) {
  for (base::Console& console : consoles_) {
    if (console.backlog() > 0) {
      console.write_some();
    }
  }
  polls = polls.subspan(consoles_.size());
  std::vector<RemoteEnd> ends;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    nodes_[i]->handle(polls.subspan(i * RemoteProcess::kNumPolls, RemoteProcess::kNumPolls),
                      [this, i](int stream, std::string_view text) {
                        take(2 * nodes_[i]->number() + stream, stream, text);
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

base::Deadline RemoteNodes::deadline() const {
  base::Deadline first = base::Deadline::never();
  for (const auto& node : nodes_) {
    first = first.earlier(node->deadline());
  }
  for (const base::Console& console : consoles_) {
    if (console.is_busy()) {
      first = first.earlier(
          base::Deadline::after(std::chrono::milliseconds(base::Console::kBusyPauseMs)));
    }
  }
  return first;
}

void RemoteNodes::close_inputs() {
  for (const auto& node : nodes_) {
    node->close_input();
  }
}

}  // namespace lockstep::remote
