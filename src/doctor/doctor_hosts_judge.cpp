#include <algorithm>
#include <cmath>
#include <map>

#include <fmt/format.h>

#include "base/network.h"
#include "doctor/doctor_hosts.h"
#include "remote/host_address.h"

namespace lockstep::doctor {

namespace {

constexpr double kClockNote = 0.5;     // seconds; logs of several hosts are hard to compare
constexpr double kClockProblem = 5.0;  // certificates, file times and make go wrong
constexpr size_t kMaxPairsShown = 20;
constexpr double kSlowLink = 0.5;  // of the median

using Results = std::vector<CheckResult>;

// `rest` if there is any, else `well` alone.
Results or_well(const Results& rest, const CheckResult& well) {
  return rest.empty() ? Results{well} : rest;
}

std::string hosts_text(size_t count) {
  return count == 1 ? "1 host" : fmt::format("all {} hosts", count);
}

// The value that most hosts have (of equally frequent ones, the first): others are exceptions.
template <class Finding, class Value>
std::string majority(const std::vector<Finding>& findings, const Value& value) {
  std::map<std::string, size_t> counts;
  std::string best;
  for (const Finding& finding : findings) {
    const std::string text = value(finding);
    if (++counts[text] > counts[best] || best.empty()) {
      best = text;
    }
  }
  return best;
}

}  // namespace

Results judge_ssh(const std::vector<SshFinding>& findings) {
  Results results;
  const SshFinding* slowest = nullptr;
  for (const SshFinding& finding : findings) {
    if (!finding.problem.empty()) {
      results.push_back({"ssh", CheckStatus::Problem, finding.problem, finding.fix});
    } else if (slowest == nullptr || finding.start_s > slowest->start_s) {
      slowest = &finding;
    }
  }
  if (slowest == nullptr) {
    return results;
  }
  return or_well(results,
                 {"ssh", CheckStatus::Ok,
                  fmt::format("no password for {}; the slowest, {}, answers in {:.2f} s",
                              hosts_text(findings.size()), slowest->host, slowest->start_s),
                  ""});
}

Results judge_clocks(const std::vector<ClockFinding>& findings) {
  Results results;
  double most = 0;
  for (const ClockFinding& finding : findings) {
    // A difference that the network may have caused does not count.
    const double off = std::max(0.0, std::abs(finding.ahead_s) - finding.rtt_s / 2);
    most = std::max(most, std::abs(finding.ahead_s));
    if (off > kClockNote) {
      results.push_back(
          {"clock", off > kClockProblem ? CheckStatus::Problem : CheckStatus::Note,
           fmt::format("the clock of {} is {:.1f} s {} this host's", finding.host,
                       std::abs(finding.ahead_s), finding.ahead_s > 0 ? "ahead of" : "behind"),
           "jobs do not depend on it, but log lines and file times do: run chrony or "
           "systemd-timesyncd there"});
    }
  }
  return or_well(results, {"clock", CheckStatus::Ok,
                           fmt::format("within {:.0f} ms of this host's", most * 1000), ""});
}

Results judge_programs(const std::vector<ProgramFinding>& findings) {
  Results results;
  const std::string version =
      majority(findings, [](const ProgramFinding& finding) { return finding.version; });
  const std::string build =
      majority(findings, [](const ProgramFinding& finding) { return finding.build; });
  for (const ProgramFinding& finding : findings) {
    if (finding.version != version) {
      results.push_back(
          {"lockstep", CheckStatus::Problem,
           fmt::format("{} has version {}, others have {}", finding.host, finding.version, version),
           "install the same version on every host"});
    } else if (finding.build != build) {
      results.push_back({"lockstep", CheckStatus::Note,
                         fmt::format("{} has another build of {} ({}, others {})", finding.host,
                                     version, finding.build, build),
                         "copy one program to every host, unless their processors differ"});
    }
  }
  return or_well(
      results,
      {"lockstep", CheckStatus::Ok,
       fmt::format("{} (build {}) on {}", version, build, hosts_text(findings.size())), ""});
}

Results judge_torch(const std::vector<ProgramFinding>& findings) {
  Results results;
  const std::string torch =
      majority(findings, [](const ProgramFinding& finding) { return finding.torch; });
  for (const ProgramFinding& finding : findings) {
    if (finding.torch != torch) {
      results.push_back(
          {"libtorch", CheckStatus::Problem,
           fmt::format("{} has {}, others have {}", finding.host,
                       finding.torch.empty() ? "no lockstep-torch" : finding.torch,
                       torch.empty() ? "no lockstep-torch" : torch),
           "ranks of one job need the same libtorch: install the same lockstep on every host"});
    }
  }
  if (torch.empty() && results.empty()) {
    return {{"libtorch", CheckStatus::Note,
             fmt::format("no lockstep-torch on {}", hosts_text(findings.size())),
             "`lockstep train` needs it; your own programs bring their own libtorch"}};
  }
  return or_well(results, {"libtorch", CheckStatus::Ok, torch, ""});
}

Results judge_names(const std::vector<NameFinding>& findings) {
  Results results;
  std::string interfaces;
  for (const NameFinding& finding : findings) {
    interfaces += fmt::format("{}{} {} ({})", interfaces.empty() ? "" : ", ", finding.host,
                              finding.address, finding.interface);
    const auto& addresses = finding.name.addresses;
    if (addresses.empty()) {
      results.push_back(
          {"host name", CheckStatus::Problem,
           fmt::format("{} calls itself {}, which does not resolve there: {}", finding.host,
                       finding.name.name, finding.name.error),
           fmt::format("add \"{} {}\" to /etc/hosts there", finding.address, finding.name.name)});
    } else if (std::all_of(addresses.begin(), addresses.end(), base::is_loopback) &&
               !base::is_loopback(finding.address)) {
      results.push_back(
          {"host name", CheckStatus::Note,
           fmt::format("{} calls itself {}, which is {} there", finding.host, finding.name.name,
                       fmt::join(addresses, ", ")),
           fmt::format(
               "lockstep's own ranks use {}; Python programs over Gloo tell the others that "
               "loopback address and all time out: make it \"{} {}\" in /etc/hosts there, "
               "or set GLOO_SOCKET_IFNAME={}",
               finding.address, finding.address, finding.name.name, finding.interface)});
    }
  }
  return or_well(results, {"host name", CheckStatus::Ok, interfaces, ""});
}

Results judge_ports(size_t num_pairs, const std::vector<ReachFinding>& findings) {
  Results results;
  for (size_t i = 0; i < findings.size() && i < kMaxPairsShown; ++i) {
    results.push_back(
        {"ports", CheckStatus::Problem,
         fmt::format("{} cannot reach {}: {}", findings[i].from, findings[i].to,
                     findings[i].problem),
         "ranks listen on ports that the kernel chooses: let the hosts' firewalls pass "
         "TCP between them, or name the right network by LOCKSTEP_INTERFACE"});
  }
  if (findings.size() > kMaxPairsShown) {
    results.push_back(
        {"ports", CheckStatus::Problem,
         fmt::format("and {} more of {} pairs", findings.size() - kMaxPairsShown, num_pairs), ""});
  }
  return or_well(results,
                 {"ports", CheckStatus::Ok,
                  num_pairs == 0 ? "one host: nobody to reach"
                                 : fmt::format("each host reaches each other, {} pairs", num_pairs),
                  ""});
}

Results judge_storage(const std::string& folder, const std::string& writer,
                      const std::vector<StorageFinding>& findings) {
  Results results;
  for (const StorageFinding& finding : findings) {
    if (!finding.problem.empty()) {
      const bool is_writer = finding.host == writer;
      results.push_back(
          {"storage", CheckStatus::Problem,
           is_writer ? fmt::format("{} cannot write in {}: {}", writer, folder, finding.problem)
                     : fmt::format("{} does not see in {} what {} wrote there: {}", finding.host,
                                   folder, writer, finding.problem),
           is_writer ? "make it writable for this user"
                     : "mount the same storage at the same path on every host"});
    }
  }
  return or_well(results, {"storage", CheckStatus::Ok,
                           fmt::format("{}: what {} writes is seen on {}", folder, writer,
                                       hosts_text(findings.size())),
                           ""});
}

Results judge_links(const std::vector<LinkResult>& links) {
  if (links.empty()) {
    return {};
  }
  std::vector<double> speeds;
  speeds.reserve(links.size());
  for (const LinkResult& link : links) {
    speeds.push_back(link.gb_per_s);
  }
  std::sort(speeds.begin(), speeds.end());
  const double median = speeds[speeds.size() / 2];
  Results results;
  for (const LinkResult& link : links) {
    if (link.gb_per_s < kSlowLink * median) {
      results.push_back({"links", CheckStatus::Note,
                         fmt::format("{} -> {} has {:.3g} GB/s, the median is {:.3g}", link.from,
                                     link.to, link.gb_per_s, median),
                         "every collective waits for the slowest link: look at its cable, switch "
                         "and driver (ethtool), and measure again without other traffic"});
    }
  }
  return or_well(results, {"links", CheckStatus::Ok,
                           fmt::format("{} measured, {:.3g} to {:.3g} GB/s", links.size(),
                                       speeds.front(), speeds.back()),
                           ""});
}

}  // namespace lockstep::doctor
