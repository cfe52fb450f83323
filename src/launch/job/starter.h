#pragma once

// Starts the nodes of a job on other hosts over ssh (--hosts), and is such a node there (--join).

#include <memory>
#include <optional>
#include <poll.h>
#include <string>
#include <vector>

#include "launch/launch.h"
#include "remote/remote_nodes.h"

namespace lockstep::launch {

// What a node is told on its standard input, where only the user who started it can write.
struct RemoteJob {
  std::vector<std::string> arguments;  // for `lockstep run` there: flags and program
  std::string endpoint;                // of the head
  std::string job_id;
  std::string secret;
  int node_rank = 0;
  int num_nodes = 1;
  int procs_per_node = 0;                          // 0: as the arguments say
  std::string folder;                              // the folder to work in
  std::map<std::string, std::string> environment;  // variables to add

  std::string to_json() const;
  static RemoteJob from_json(const std::string& line);  // throws FormatError
};

// Reads one from standard input, goes to its folder and takes over its environment. Throws IoError
// and UsageError.
RemoteJob receive_remote_job();

// For the poll loop of a leader that is the head and has no ranks itself.
class Starter {
 public:
  // Starts a node on every host of the options. Throws IoError if ssh cannot be started.
  Starter(const LaunchOptions& options, const RemoteJob& job, base::ConsoleBoard& board);

  void add_polls(std::vector<pollfd>& polls);
  // Call it after poll(2) with the same vector. Returns a sentence if anything went wrong.
  std::optional<std::string> serve(const std::vector<pollfd>& polls);
  base::Deadline next_timeout() const { return nodes_.deadline(); }

  bool is_quiet() const { return nodes_.is_quiet(); }

 private:
  remote::RemoteNodes nodes_;
  size_t first_poll_ = 0;
  size_t num_polls_ = 0;
};

}  // namespace lockstep::launch
