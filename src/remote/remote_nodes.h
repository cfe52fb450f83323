#pragma once

// The nodes of a job on other hosts, each a `lockstep run --join` that this process starts over ssh
// and tells its job on standard input.

#include <map>
#include <memory>
#include <poll.h>
#include <span>
#include <string>
#include <vector>

#include "base/console.h"
#include "remote/remote_process.h"

namespace lockstep::remote {

struct RemoteNodesOptions {
  std::string program;  // REQUIRED: absolute path of this lockstep (own_program())
  std::vector<std::string> arguments{"run", "--join"};
  SshOptions ssh;
  base::ConsoleBoard* board = nullptr;  // as in ConsoleOptions
  std::chrono::nanoseconds start_timeout = std::chrono::seconds(30);
};

// A host that is this one is started without ssh. Lines of several hosts come out whole on this
// process's standard output and error: ssh cuts its output anywhere, so it is put together here.
// A slow reader slows the hosts down; one that is gone ends them.
//
//   RemoteNodes nodes({.program = own_program(), .ssh = SshOptions::from_env(Env())});
//   nodes.start(host, job.dump());                  // for each host: it reads the job as one line
//   while (!nodes.is_quiet()) {
//     std::vector<pollfd> polls = ...;              // the caller's own
//     const size_t first = polls.size();
//     nodes.add_polls(polls);
//     ::poll(polls.data(), polls.size(), nodes.deadline().poll_ms());
//     for (const RemoteEnd& end : nodes.handle(std::span(polls).subspan(first))) {
//       ...                                         // !end.was_ready: say end.sentence(), stop
//     }
//   }
//
// Threads: none, so the caller may fork; a forked child must close what it does not need, or it
// hides the end of this process from the hosts (close_all_except()).
class RemoteNodes {
 public:
  explicit RemoteNodes(RemoteNodesOptions options);

  // `job`: one line without its end. Throws IoError if ssh cannot be started at all.
  void start(const HostEntry& host, const std::string& job);

  size_t num_running() const { return nodes_.size(); }
  bool is_quiet() const;  // no node runs and all output is written

  // Do not call start() between the two. After an interrupted poll(2), handle() is not needed.
  void add_polls(std::vector<pollfd>& polls) const;
  std::vector<RemoteEnd> handle(std::span<const pollfd> polls);  // the nodes that ended now
  base::Deadline deadline() const;

  void close_inputs();  // lockstep there reads end of file and ends its node

 private:
  void take(int64_t writer, int stream, std::string_view text);

  RemoteNodesOptions options_;
  std::array<base::Console, 2> consoles_;
  std::vector<std::unique_ptr<RemoteProcess>> nodes_;
  int64_t num_started_ = 0;
  std::map<int64_t, bool> after_return_;  // by stream of a host: its last byte was a "\r"
};

}  // namespace lockstep::remote
