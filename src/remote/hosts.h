#pragma once

// The hosts of a job, as a user names them: `--hosts a,b:4,user@c` or a file of lines.

#include <string>
#include <vector>

namespace lockstep::remote {

inline constexpr int kMaxSlots = 1024;

struct HostEntry {
  std::string name;  // a name or a numeric address, without brackets; never begins with a dash
  std::string user;  // empty: ssh's choice
  int slots = 0;     // the number of its ranks, at most kMaxSlots; 0: not given

  std::string text() const { return user.empty() ? name : user + "@" + name; }
};

// "a,b:4,user@c,[fe80::1]:2": the number after the colon is slots, as MPICH and Horovod have it.
// The port of a host's ssh server is a matter of ssh's configuration (~/.ssh/config).
// A host that is named twice has the slots of both, 1 for a mention without a number (Open MPI).
// Throws UsageError that names `what` (the flag).
std::vector<HostEntry> parse_hosts(const std::string& list, const std::string& what = "--hosts");

// One host per line, with its slots as Open MPI (`host slots=4 max_slots=4`) or MPICH (`host:4`)
// writes them; `#` begins a comment. A file that names a host once per slot ($PBS_NODEFILE) works
// too: see above. Throws IoError, and UsageError that names the file and the line.
std::vector<HostEntry> read_hostfile(const std::string& path);

}  // namespace lockstep::remote
