#pragma once

// The short forms in which Slurm writes long lists.

#include <string>
#include <vector>

namespace lockstep::base {

inline constexpr int kMaxListedHosts = 65536;

// "gpu[001-003,7],login", "r[1-2]n[1-4]": the hosts, in order. `what` names the list in the
// UsageError about one that is malformed or has more than kMaxListedHosts.
std::vector<std::string> expand_host_list(const std::string& list, const std::string& what);

// "2(x3),1": the entry of `node`. Throws UsageError that names `what`.
int tasks_on_node(const std::string& list, int node, const std::string& what);

}  // namespace lockstep::base
