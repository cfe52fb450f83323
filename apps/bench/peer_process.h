#pragma once

// A Python process that is measured beside us: a script that answers line by line.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/process/process.h"

namespace lockstep {

// Threads: not thread-safe.
class PeerProcess {
 public:
  // Throws IoError if the program cannot be started.
  void start(std::vector<std::string> argv, std::map<std::string, std::string> env);

  void say(const std::string& line);  // with its newline

  // These throw IoError if nothing comes for ten minutes.
  std::string answer();             // one line; empty if it has ended
  std::string bytes(size_t count);  // that follow the line; fewer if it has ended
  std::string ending();             // waits until it ends: "exit code 3"

 private:
  bool read_more();  // false at the end

  base::UniqueFd to_;
  base::UniqueFd from_;
  std::optional<base::Process> process_;
  std::string read_;  // and not yet asked for
};

}  // namespace lockstep
