#pragma once

// A Python process that is measured beside us: a script that answers line by line.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/process/process.h"

namespace lockstep {

class PeerProcess {
 public:
  // Throws IoError if the program cannot be started.
  void start(std::vector<std::string> argv, std::map<std::string, std::string> env);

  void say(const std::string& line);  // with its newline
  std::string answer();               // one line; empty if it has ended

 private:
  base::UniqueFd to_;
  base::UniqueFd from_;
  std::optional<base::Process> process_;
};

}  // namespace lockstep
