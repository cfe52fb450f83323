#include "doctor/doctor.h"

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "base/env.h"
#include "base/process/process.h"
#include "command_line.h"
#include "commands.h"
#include "device/plugin_api.h"
#include "doctor/doctor_hosts.h"
#include "doctor/doctor_serve.h"
#include "sibling_program.h"

namespace lockstep::app {

namespace {

constexpr const char* kDoctorExamples =
    "Examples:\n"
    "  lockstep doctor\n"
    "  lockstep doctor --hosts node1,node2,me@node3 --path /data/checkpoints\n"
    "  lockstep doctor --json | jq '.checks[] | select(.status == \"PROBLEM\")'\n"
    "\n"
    "Exit code: 1 if there is a PROBLEM; a note does not change it.\n";

struct DoctorFlags {
  bool as_json = false;
  bool serve = false;
  std::string hosts;
  std::string hostfile;
  std::string path;
};

int examine_hosts(const DoctorFlags& flags) {
  if (!flags.hosts.empty() && !flags.hostfile.empty()) {
    throw UsageError("--hosts and --hostfile exclude each other");
  }
  const base::Env env;
  const auto report = doctor::check_hosts(
      {.hosts = flags.hostfile.empty() ? remote::parse_hosts(flags.hosts)
                                       : remote::read_hostfile(flags.hostfile),
       .program = base::own_program(),
       .ssh = remote::SshOptions::from_env(env),
       .shared_folder = flags.path,
       .interface =
           env.text("LOCKSTEP_INTERFACE").value_or(env.text("GLOO_SOCKET_IFNAME").value_or(""))});
  fmt::print("{}", flags.as_json ? doctor::hosts_json(report) : doctor::hosts_table(report));
  return doctor::is_healthy(report.checks) ? 0 : 1;
}

}  // namespace

int doctor(const Arguments& arguments) {
  DoctorFlags flags;
  CLI::App app("Checks what lockstep needs of this machine, or of several hosts together.",
               "lockstep doctor");
  app.add_option("--hosts", flags.hosts, "Check these hosts over ssh: a,b,user@c")
      ->type_name("LIST");
  app.add_option("--hostfile", flags.hostfile, "A file that lists the hosts, one per line")
      ->type_name("FILE");
  app.add_option("--path", flags.path, "A folder that all hosts should share (with --hosts)")
      ->type_name("DIR");
  app.add_flag("--json", flags.as_json,
               "Print {\"ok\", \"checks\": [{\"name\", \"status\", \"found\", \"fix\"}], "
               "\"gpus\": [...]}; with --hosts \"links\" instead of \"gpus\"");
  app.add_flag("--serve", flags.serve)->group("");  // what --hosts starts on each host
  app.footer(kDoctorExamples);
  SplitArguments split = split_arguments(app, arguments);
  if (!split.command.empty()) {
    throw UsageError("doctor takes no argument {}", split.command.front());
  }
  if (!parse_flags(app, std::move(split.flags))) {
    return 0;
  }
  if (flags.serve) {
    return doctor::serve_doctor({.torch_program = sibling_path("lockstep-torch")});
  }
  if (!flags.hosts.empty() || !flags.hostfile.empty()) {
    return examine_hosts(flags);
  }
  if (!flags.path.empty()) {
    throw UsageError("--path is about several hosts; name them by --hosts or --hostfile");
  }
  const auto report = doctor::examine({.torch_program = sibling_path("lockstep-torch"),
                                       .plugin_entry = LOCKSTEP_CUDA_PLUGIN_ENTRY,
                                       .plugin_version = LOCKSTEP_CUDA_PLUGIN_VERSION});
  fmt::print("{}",
             flags.as_json ? doctor::report_json(report) : doctor::checks_table(report.checks));
  return doctor::is_healthy(report.checks) ? 0 : 1;
}

}  // namespace lockstep::app
