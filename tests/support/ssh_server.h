#pragma once

// Real OpenSSH between emulated machines, with keys, configuration and a home of its own: nothing
// of the user's own home is read or written.

#include <optional>
#include <string>
#include <vector>

#include "base/process/process.h"
#include "support/nodes.h"

namespace lockstep::test {

// An ssh server on each node, and clients that may log in by a key. Goes with the object; the nodes
// must outlive it. Threads: not thread-safe.
class SshServers {
 public:
  // `folder`: where keys and configuration are kept. Returns once every server listens; throws
  // IoError if one does not.
  SshServers(const TestNodes& nodes, const std::string& folder);

  // A program for LOCKSTEP_SSH, to be started inside a node: "ssh -F .../config".
  std::vector<std::string> client() const { return {"ssh", "-F", config_}; }
  // The same for a test's process, which is in no node: ssh runs in `node`.
  std::vector<std::string> client_in(int node) const;

  // Another user's key: servers refuse it.
  std::vector<std::string> client_with_wrong_key() const { return {"ssh", "-F", wrong_config_}; }

 private:
  void start(int node);

  const TestNodes& nodes_;
  std::string folder_;
  std::string config_;
  std::string wrong_config_;
  std::vector<base::Process> servers_;
};

// Why there can be no ssh server here, if there can be none.
std::optional<std::string> ssh_refusal();

}  // namespace lockstep::test
