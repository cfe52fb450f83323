#pragma once

// Where ranks for tests come from: a process that has loaded libtorch and done nothing else forks
// them. That takes milliseconds; to start a program with libtorch takes up to half a second, and
// tests that kill ranks need hundreds.

#include <map>
#include <optional>
#include <string>
#include <sys/types.h>

#include "base/process/process.h"
#include "base/unique_fd.h"

namespace lockstep::testing_support {

class Nursery {
 public:
  // `env` is for the nursery and all that come from it: what libraries read as they are loaded.
  explicit Nursery(const std::map<std::string, std::string>& env);

  // Forks a process with `env` besides, which gets the descriptor; see forked_rank(). Returns its
  // pid. It dies with the nursery, and that with the thread that made it.
  pid_t start(const std::map<std::string, std::string>& env, int channel);

  // Reaps it; blocks until it has ended.
  base::ExitStatus wait(pid_t pid);

 private:
  base::UniqueFd socket_;
  base::Process process_;
};

// True in a process that Nursery() has started. forked_rank() then forks as it is told, and returns
// in each new process the descriptor that was for it, in the nursery itself nothing: the test is
// over.
bool is_nursery();
std::optional<int> forked_rank();

}  // namespace lockstep::testing_support
