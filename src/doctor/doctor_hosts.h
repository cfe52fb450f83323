#pragma once

// `lockstep doctor --hosts a,b`: whether these hosts can run a job together, and how fast the
// links between them are.

#include <string>
#include <vector>

#include "doctor/doctor.h"
#include "remote/hosts.h"
#include "remote/ssh.h"

namespace lockstep::doctor {

inline constexpr size_t kMaxDoctorHosts = 256;

struct HostsDoctorOptions {
  std::vector<remote::HostEntry> hosts;  // REQUIRED, at most kMaxDoctorHosts
  std::string program;                   // REQUIRED: absolute path of lockstep here
  remote::SshOptions ssh;
  std::string shared_folder;  // must be the same on all hosts; empty: not checked
  std::string interface;      // by which hosts reach each other; empty: the one that ssh uses
};

struct LinkResult {
  std::string from;
  std::string to;
  double rtt_us = 0;
  double gb_per_s = 0;
};

struct HostsReport {
  std::vector<CheckResult> checks;
  std::vector<LinkResult> links;
};

// A check that passes on all hosts is one result; otherwise each host or pair of hosts where it
// fails has a result of its own. Takes some seconds. Throws UsageError.
HostsReport check_hosts(const HostsDoctorOptions& options);

std::string hosts_table(const HostsReport& report);
std::string hosts_json(const HostsReport& report);  // docs/concepts/doctor.md

// The links to measure: pairs (from, to) in rounds, in each of which a host has at most one link.
// With up to 4 hosts these are all pairs, both ways; with more, each host and the next, in a ring.
using LinkRound = std::vector<std::pair<size_t, size_t>>;
std::vector<LinkRound> link_rounds(size_t num_hosts);

// The judgements. Each is given what was found on the hosts that answered.
struct SshFinding {
  std::string host;
  double start_s = 0;
  std::string problem;
  std::string fix;
};
std::vector<CheckResult> judge_ssh(const std::vector<SshFinding>& findings);

struct ClockFinding {
  std::string host;
  double ahead_s = 0;  // how far this host's clock is ahead
  double rtt_s = 0;    // of the question; half of it is the uncertainty
};
std::vector<CheckResult> judge_clocks(const std::vector<ClockFinding>& findings);

struct ProgramFinding {
  std::string host;
  std::string version;
  std::string build;
  std::string torch;  // empty: lockstep-torch is not there
};
std::vector<CheckResult> judge_programs(const std::vector<ProgramFinding>& findings);
std::vector<CheckResult> judge_torch(const std::vector<ProgramFinding>& findings);

struct NameFinding {
  std::string host;     // as the user names it
  HostName name;        // as it calls itself
  std::string address;  // where it listened; empty: it could not
  std::string interface;
};
std::vector<CheckResult> judge_names(const std::vector<NameFinding>& findings);

struct ReachFinding {
  std::string from;
  std::string to;  // with address and port
  std::string problem;
};
// `num_pairs`: how many were tried; `findings`: those that failed.
std::vector<CheckResult> judge_ports(size_t num_pairs, const std::vector<ReachFinding>& findings);

struct StorageFinding {
  std::string host;
  std::string problem;  // empty: it saw the file
};
std::vector<CheckResult> judge_storage(const std::string& folder, const std::string& writer,
                                       const std::vector<StorageFinding>& findings);

std::vector<CheckResult> judge_links(const std::vector<LinkResult>& links);

}  // namespace lockstep::doctor
