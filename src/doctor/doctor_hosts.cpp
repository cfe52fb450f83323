#include "doctor/doctor_hosts.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <lockstep/base/error.h>
#include <lockstep/base/version.h>

#include "base/socket.h"
#include "doctor/doctor_peers.h"
#include "remote/host_address.h"

namespace lockstep::doctor {

namespace {

using Json = nlohmann::json;
using std::chrono::seconds;

constexpr size_t kAllPairsUpTo = 4;  // hosts whose links are all measured
constexpr int kClockQuestions = 5;
constexpr auto kSeeTime = std::chrono::milliseconds(5000);
// How long a host may take to answer.
constexpr auto kQuickAnswer = seconds(10);
constexpr auto kHelloAnswer = seconds(40);  // it starts lockstep-torch
constexpr auto kMeasureAnswer = seconds(15);

// Asks the hosts everything, in order.
class Examination {
 public:
  explicit Examination(const HostsDoctorOptions& options)
      : options_(options),
        peers_({.hosts = options.hosts, .program = options.program, .ssh = options.ssh}) {}

  HostsReport run() {
    compare_programs();
    compare_clocks();
    open_listeners();
    try_pairs();
    measure_links();
    if (!options_.shared_folder.empty()) {
      try_storage();
    }
    add(judge_links(report_.links));
    std::vector<SshFinding> findings;  // last: a host may be lost on the way
    for (size_t i = 0; i < peers_.size(); ++i) {
      findings.push_back({name(i), peers_[i].start_s, peers_[i].problem, peers_[i].fix});
    }
    auto ssh = judge_ssh(findings);
    report_.checks.insert(report_.checks.begin(), ssh.begin(), ssh.end());
    return std::move(report_);
  }

 private:
  std::string name(size_t i) const { return peers_[i].host.text(); }
  void add(const std::vector<CheckResult>& results) {
    report_.checks.insert(report_.checks.end(), results.begin(), results.end());
  }

  // A host that answered with an error of its own: said once, under the check's name.
  bool failed(const char* check, size_t i, const Json& answer) {
    if (answer.is_object() && answer.contains("error")) {
      add({{check, CheckStatus::Problem,
            fmt::format("{}: {}", name(i), answer["error"].get<std::string>()), ""}});
    }
    return !answer.is_object() || answer.contains("error");
  }

  void compare_programs() {
    const auto answers = peers_.ask_all({{"do", "hello"}}, kHelloAnswer);
    std::vector<ProgramFinding> programs;
    names_.resize(peers_.size());
    for (size_t i = 0; i < peers_.size(); ++i) {
      if (!failed("lockstep", i, answers[i])) {
        programs.push_back(
            {name(i), answers[i].at("version"), answers[i].at("build"), answers[i].at("torch")});
        names_[i] = {.host = name(i),
                     .name = {answers[i].at("name"), answers[i].at("addresses"),
                              answers[i].at("error_of_name")}};
        if (programs.back().version != kVersion) {
          peers_.dismiss(i, fmt::format("{} was not examined: its lockstep is {}, this one is {}",
                                        name(i), programs.back().version, kVersion));
        }
      }
    }
    if (!programs.empty()) {
      add(judge_programs(programs));
      add(judge_torch(programs));
    }
  }

  void compare_clocks() {
    std::vector<std::optional<ClockFinding>> best(peers_.size());
    for (int question = 0; question < kClockQuestions; ++question) {
      const auto answers = peers_.ask_all({{"do", "time"}}, kQuickAnswer);
      for (size_t i = 0; i < peers_.size(); ++i) {
        if (!answers[i].is_object() || answers[i].contains("error")) {
          continue;
        }
        const DoctorPeer& peer = peers_[i];
        const auto rtt_ns = static_cast<double>(peer.answered_ns - peer.asked_ns);
        const auto middle_ns =
            static_cast<double>(answers[i].at("time_ns").get<int64_t>() - peer.asked_ns) -
            rtt_ns / 2;
        if (!best[i] || rtt_ns * 1e-9 < best[i]->rtt_s) {
          best[i] = {name(i), middle_ns * 1e-9, rtt_ns * 1e-9};
        }
      }
    }
    std::vector<ClockFinding> findings;
    for (const auto& finding : best) {
      if (finding) {
        findings.push_back(*finding);
      }
    }
    if (!findings.empty()) {
      add(judge_clocks(findings));
    }
  }

  void open_listeners() {
    std::vector<Json> questions(peers_.size());
    for (size_t i = 0; i < peers_.size(); ++i) {
      try {
        // Over ssh a host sees by which address it was reached; this one has to be told.
        const std::string address =
            peers_[i].is_local ? remote::rendezvous_address(options_.hosts, options_.ssh) : "";
        questions[i] = {{"do", "listen"}, {"interface", options_.interface}, {"address", address}};
      } catch (const UsageError& error) {
        add({{"ports", CheckStatus::Problem, error.what(), ""}});
      }
    }
    listeners_ = peers_.ask(questions, kQuickAnswer);
    std::vector<NameFinding> findings;
    for (size_t i = 0; i < peers_.size(); ++i) {
      if (failed("ports", i, listeners_[i])) {
        listeners_[i] = nullptr;
        continue;
      }
      names_[i].address = listeners_[i].at("address");
      names_[i].interface = listeners_[i].at("interface");
      findings.push_back(names_[i]);
    }
    if (!findings.empty()) {
      add(judge_names(findings));
    }
  }

  void try_pairs() {
    reached_.assign(peers_.size(), std::vector<bool>(peers_.size(), false));
    std::vector<Json> questions(peers_.size());
    std::vector<std::vector<size_t>> targets(peers_.size());
    for (size_t i = 0; i < peers_.size(); ++i) {
      Json to = Json::array();
      for (size_t j = 0; j < peers_.size(); ++j) {
        if (j != i && !listeners_[j].is_null()) {
          to.push_back(listeners_[j]);
          targets[i].push_back(j);
        }
      }
      questions[i] = {{"do", "reach"}, {"to", to}};
    }
    const auto answers = peers_.ask(questions, kQuickAnswer);
    std::vector<ReachFinding> findings;
    size_t num_pairs = 0;
    for (size_t i = 0; i < peers_.size(); ++i) {
      if (failed("ports", i, answers[i])) {
        continue;
      }
      for (size_t k = 0; k < targets[i].size(); ++k) {
        const size_t j = targets[i][k];
        const std::string problem = answers[i].at("problems").at(k);
        reached_[i][j] = problem.empty();
        ++num_pairs;
        if (!problem.empty()) {
          findings.push_back({name(i), fmt::format("{} at {}", name(j), endpoint(j)), problem});
        }
      }
    }
    add(judge_ports(num_pairs, findings));
  }

  std::string endpoint(size_t i) const {
    return base::Endpoint{listeners_[i].at("address"), listeners_[i].at("port")}.text();
  }

  void measure_links() {
    for (const LinkRound& round : link_rounds(peers_.size())) {
      std::vector<Json> questions(peers_.size());
      std::vector<size_t> target(peers_.size());
      for (const auto& [from, to] : round) {
        if (reached_[from][to]) {
          questions[from] = {{"do", "measure"}, {"to", listeners_[to]}};
          target[from] = to;
        }
      }
      const auto answers = peers_.ask(questions, kMeasureAnswer);
      for (size_t i = 0; i < peers_.size(); ++i) {
        if (!questions[i].is_null() && !failed("links", i, answers[i])) {
          report_.links.push_back(
              {name(i), name(target[i]), answers[i].at("rtt_us"), answers[i].at("gb_per_s")});
        }
      }
    }
  }

  void try_storage() {
    size_t writer = 0;
    while (writer < peers_.size() && !peers_[writer].is_well()) {
      ++writer;
    }
    if (writer == peers_.size()) {
      return;
    }
    std::vector<Json> questions(peers_.size());
    questions[writer] = {{"do", "write"}, {"folder", options_.shared_folder}};
    const Json written = peers_.ask(questions, kQuickAnswer)[writer];
    std::vector<StorageFinding> findings;
    if (!written.is_object() || written.contains("error")) {
      findings.push_back({name(writer), written.value("error", "it is lost")});
    } else {
      const auto answers = peers_.ask_all(
          {{"do", "see"}, {"file", written.at("file")}, {"timeout_ms", kSeeTime.count()}},
          kSeeTime + kQuickAnswer);
      for (size_t i = 0; i < peers_.size(); ++i) {
        if (!failed("storage", i, answers[i])) {
          findings.push_back({name(i), answers[i].at("problem")});
        }
      }
    }
    add(judge_storage(options_.shared_folder, name(writer), findings));
  }

  const HostsDoctorOptions& options_;
  DoctorPeers peers_;
  HostsReport report_;
  std::vector<NameFinding> names_;
  std::vector<Json> listeners_;             // null: it does not listen
  std::vector<std::vector<bool>> reached_;  // [from][to]
};

}  // namespace

std::vector<LinkRound> link_rounds(size_t num_hosts) {
  LinkRound links;
  for (size_t i = 0; i < num_hosts; ++i) {
    for (size_t j = 0; j < num_hosts; ++j) {
      if (i != j && (num_hosts <= kAllPairsUpTo || j == (i + 1) % num_hosts)) {
        links.emplace_back(i, j);
      }
    }
  }
  std::vector<LinkRound> rounds;
  while (!links.empty()) {
    std::vector<bool> is_busy(num_hosts);
    LinkRound round;
    LinkRound rest;
    for (const auto& [from, to] : links) {
      const bool is_free = !is_busy[from] && !is_busy[to];
      (is_free ? round : rest).emplace_back(from, to);
      if (is_free) {
        is_busy[from] = is_busy[to] = true;
      }
    }
    rounds.push_back(std::move(round));
    links = std::move(rest);
  }
  return rounds;
}

HostsReport check_hosts(const HostsDoctorOptions& options) {
  if (options.hosts.size() > kMaxDoctorHosts) {
    throw UsageError("{} hosts are more than doctor examines at once, {}; name fewer",
                     options.hosts.size(), kMaxDoctorHosts);
  }
  if (!options.shared_folder.empty() && options.shared_folder.front() != '/') {
    throw UsageError("--path {} is not absolute: it must mean the same on every host",
                     options.shared_folder);
  }
  return Examination(options).run();
}

std::string hosts_table(const HostsReport& report) {
  std::string text = checks_table(report.checks);
  if (report.links.empty()) {
    return text;
  }
  size_t width = 0;
  for (const LinkResult& link : report.links) {
    width = std::max(width, link.from.size() + link.to.size() + 4);
  }
  text += fmt::format("\n{:<{}}  round trip    bandwidth\n", "link", width);
  for (const LinkResult& link : report.links) {
    text +=
        fmt::format("{:<{}}  {:>7.0f} us  {:>6.3g} GB/s\n",
                    fmt::format("{} -> {}", link.from, link.to), width, link.rtt_us, link.gb_per_s);
  }
  return text;
}

std::string hosts_json(const HostsReport& report) {
  auto json = nlohmann::ordered_json::parse(checks_json(report.checks));
  json["links"] = nlohmann::ordered_json::array();
  for (const LinkResult& link : report.links) {
    json["links"].push_back({{"from", link.from},
                             {"to", link.to},
                             {"rtt_us", link.rtt_us},
                             {"gb_per_s", link.gb_per_s}});
  }
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace lockstep::doctor
