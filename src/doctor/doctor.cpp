#include "doctor/doctor.h"

#include <algorithm>
#include <netdb.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/process/cores.h"
#include "base/process/isolation.h"
#include "base/unique_fd.h"
#include "doctor/gpu_checks.h"
#include "doctor/gpu_json.h"
#include "doctor/gpu_probe.h"

namespace lockstep::doctor {

namespace {

const char* status_text(CheckStatus status) {
  switch (status) {
    case CheckStatus::Ok:
      return "ok";
    case CheckStatus::Note:
      return "note";
    case CheckStatus::Problem:
      return "PROBLEM";
  }
  return "?";
}

}  // namespace

HostName look_up_host_name() {
  HostName host;
  char name[256] = "";
  ::gethostname(name, sizeof name - 1);
  host.name = name;
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const int error = ::getaddrinfo(name, nullptr, &hints, &list);
  if (error != 0) {
    host.error = error == EAI_SYSTEM ? base::errno_text(errno) : ::gai_strerror(error);
    return host;
  }
  for (const addrinfo* item = list; item != nullptr; item = item->ai_next) {
    char text[NI_MAXHOST] = "";
    if (::getnameinfo(item->ai_addr, item->ai_addrlen, text, sizeof text, nullptr, 0,
                      NI_NUMERICHOST) == 0) {
      host.addresses.emplace_back(text);
    }
  }
  ::freeaddrinfo(list);
  return host;
}

DoctorReport examine(const DoctorOptions& options) {
  rlimit files{};
  rlimit processes{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  ::getrlimit(RLIMIT_NPROC, &processes);
  DoctorReport report;
  std::vector<CheckResult>& checks = report.checks;
  checks.push_back(check_compiler(options.compiler));
  for (CheckResult& check : check_torch(options.torch_program)) {
    checks.push_back(std::move(check));
  }
  checks.push_back(check_cuda_toolkit(options.cuda_compiler));
  report.gpus = probe_gpus({.root = options.root,
                            .torch_program = options.torch_program,
                            .plugin_entry = options.plugin_entry});
  for (CheckResult& check : check_gpus(report.gpus, options.plugin_version)) {
    checks.push_back(std::move(check));
  }
  checks.push_back(check_shared_memory(options.root + "/dev/shm"));
  checks.push_back(check_cores(options.root, static_cast<int>(base::usable_cores().size())));
  checks.push_back(check_memory(options.root));
  checks.push_back(check_open_files(files.rlim_cur, files.rlim_max));
  checks.push_back(check_processes(processes.rlim_cur));
  const HostName host = look_up_host_name();
  checks.push_back(check_host_name(host.name, host.addresses, host.error));
  checks.push_back(check_isolation(base::pid_namespace_refusal()));
  if (base::choose_isolation(base::IsolationMode::Auto) == base::IsolationMode::UserNamespace) {
    checks.back().found = "userns: the kernel ends what a job leaves behind, in a user namespace";
    checks.back().fix.clear();
  }
  return report;
}

bool is_healthy(const std::vector<CheckResult>& checks) {
  return std::none_of(checks.begin(), checks.end(), [](const CheckResult& check) {
    return check.status == CheckStatus::Problem;
  });
}

std::string checks_table(const std::vector<CheckResult>& checks) {
  size_t width = 0;
  for (const CheckResult& check : checks) {
    width = std::max(width, check.name.size());
  }
  std::string text;
  for (const CheckResult& check : checks) {
    text += fmt::format("{:<7}  {:<{}}  {}\n", status_text(check.status), check.name, width,
                        check.found);
    if (!check.fix.empty()) {
      text += fmt::format("{:<7}  {:<{}}  -> {}\n", "", "", width, check.fix);
    }
  }
  return text;
}

namespace {

// What a tool prints may not be UTF-8; a report with a replaced letter is better than none.
std::string dump(const nlohmann::ordered_json& json) {
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

nlohmann::ordered_json json_of(const std::vector<CheckResult>& checks) {
  nlohmann::ordered_json json;
  json["ok"] = is_healthy(checks);
  json["checks"] = nlohmann::ordered_json::array();
  for (const CheckResult& check : checks) {
    json["checks"].push_back({{"name", check.name},
                              {"status", status_text(check.status)},
                              {"found", check.found},
                              {"fix", check.fix}});
  }
  return json;
}

}  // namespace

std::string checks_json(const std::vector<CheckResult>& checks) {
  return dump(json_of(checks));
}

std::string report_json(const DoctorReport& report) {
  auto json = json_of(report.checks);
  json["gpus"] = devices_json(report.gpus);
  return dump(json);
}

}  // namespace lockstep::doctor
