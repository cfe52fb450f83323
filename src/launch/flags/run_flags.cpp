#include "launch/flags/run_flags.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <map>

#include <lockstep/base/error.h>

#include "base/env.h"
#include "base/process/cores.h"
#include "base/text/text.h"
#include "launch/flags/command.h"
#include "launch/node/gpus.h"
#include "storage/storage.h"

namespace lockstep::launch {

namespace {

// The value of a flag, or `otherwise` if the flag was not given.
std::string or_else(const std::string& text, const std::string& otherwise) {
  return text.empty() ? otherwise : text;
}

bool is_counted(const std::string& nproc_per_node) {
  return nproc_per_node == "auto" || nproc_per_node == "cpu" || nproc_per_node == "gpu";
}

bool names_hosts(const RunFlags& flags) {
  return !flags.hosts.empty() || !flags.hostfile.empty();
}

int procs_per_node(const RunFlags& flags, const RunHost& host, int local_nodes) {
  const std::string flag = "--nproc-per-node";
  const std::string text = or_else(flags.nproc_per_node, "1");
  const int num_gpus = host.is_for_cpu ? 0 : host.num_gpus;
  int count = host.num_cores;
  if (text == "gpu" || (text == "auto" && num_gpus > 0)) {
    count = num_gpus;
  } else if (text == "xpu") {
    throw UsageError("{} xpu: lockstep counts NVIDIA GPUs and cores only; give the number", flag);
  } else if (text != "cpu" && text != "auto") {
    if (!text.empty() && text.find_first_not_of("0123456789+-.xX") == 0) {
      throw UsageError("{} {} is unknown; it is a number, auto, cpu or gpu", flag, text);
    }
    return flag_number(flag, text, 1, kMaxProcsPerNode);
  }
  if (count == 0 && host.is_for_cpu) {
    throw UsageError(
        "{} gpu: LOCKSTEP_DEVICE=cpu says that GPUs are left alone; unset it, or give cpu, which "
        "counts cores",
        flag);
  }
  if (count == 0) {
    throw UsageError(
        "{} gpu: there is no GPU here (no /dev/nvidia<N>, or none that CUDA_VISIBLE_DEVICES "
        "names); "
        "cpu counts cores, and `lockstep doctor` says what is missing",
        flag);
  }
  if (text == "gpu" && count < local_nodes && !flags.share_gpu) {
    throw UsageError(
        "{} gpu: {} cannot be dealt out to {} emulated nodes; give fewer --local-nodes, or let the "
        "ranks share by --share-gpu",
        flag, count == 1 ? "one GPU" : fmt::format("{} GPUs", count), local_nodes);
  }
  return std::clamp(count / local_nodes, 1, kMaxProcsPerNode);  // emulated nodes share the host
}

PlacementOptions placement_options(const RunFlags& flags) {
  if (!flags.bind.empty() && !flags.numa_binding.empty()) {
    throw UsageError("--bind {} and --numa-binding {} both say where ranks run; give one of them",
                     flags.bind, flags.numa_binding);
  }
  PlacementOptions options{.virtual_local_rank = flags.virtual_local_rank,
                           .share_gpu = flags.share_gpu};
  if (!flags.bind.empty()) {
    options.bind = parse_bind(flags.bind);
  } else if (!flags.numa_binding.empty()) {
    options.bind = parse_numa_binding(flags.numa_binding);
  }
  return options;
}

// These flags have no effect, but a wrong value is refused all the same.
void check_accepted(const RunFlags& flags) {
  if (!flags.monitor_interval.empty()) {
    flag_seconds("--monitor-interval", flags.monitor_interval);
  }
  const std::string& method = flags.start_method;
  if (!method.empty() && method != "spawn" && method != "fork" && method != "forkserver") {
    throw UsageError("--start-method {} is unknown; it is spawn, fork or forkserver", method);
  }
}

void check_refused(const RunFlags& flags) {
  if (!flags.event_log_handler.empty() && flags.event_log_handler != "null") {
    throw UsageError(
        "--event-log-handler {} names a handler inside Python's torch, which lockstep does not "
        "load; events are in its log on standard error",
        flags.event_log_handler);
  }
  if (!flags.logs_specs.empty()) {
    throw UsageError(
        "--logs-specs {} names a Python plug-in, which lockstep does not load; --log-dir, "
        "--redirects and --tee choose where output goes",
        flags.logs_specs);
  }
}

std::optional<image::ContainerOptions> container_options(const RunFlags& flags) {
  if (flags.image.empty()) {
    if (!flags.mounts.empty() || !flags.container_runtime.empty()) {
      throw UsageError("--mount and --container-runtime say how to run in an image; give --image");
    }
    return std::nullopt;
  }
  image::ContainerOptions options{
      .image = storage::is_remote(flags.image)
                   ? stage_image(flags.image, base::Env()).destination
                   : std::filesystem::absolute(flags.image).lexically_normal().string(),
      .runtime = image::parse_container_runtime(or_else(flags.container_runtime, "builtin"))};
  for (const std::string& mount : flags.mounts) {
    options.mounts.push_back(flags.stages.empty() ? image::parse_mount(mount)
                                                  : image::parse_mount_of_later(mount));
  }
  return options;
}

std::vector<StageItem> stage_items(const RunFlags& flags) {
  std::vector<StageItem> items;
  for (const std::string& stage : flags.stages) {
    items.push_back(parse_stage(stage));
  }
  if (!flags.image.empty() && storage::is_remote(flags.image)) {
    items.push_back(stage_image(flags.image, base::Env()));
  }
  return items;
}

int stdin_rank(const RunFlags& flags, const LaunchOptions& options) {
  if (flags.stdin_rank.empty()) {
    return -1;
  }
  if (!options.hosts.empty()) {
    throw UsageError(
        "--stdin {}: the terminal does not reach the hosts of --hosts; start the nodes by hand "
        "(--nnodes, --node-rank), with --stdin where that rank is",
        flags.stdin_rank);
  }
  const int num_ranks =
      (options.max_nodes > 1 ? options.max_nodes : options.local_nodes) * options.procs_per_node;
  return flag_number("--stdin", flags.stdin_rank, 0, num_ranks - 1);
}

// The hosts are the nodes, so every other flag that says where nodes are contradicts them.
std::vector<remote::HostEntry> host_entries(const RunFlags& flags) {
  if (flags.hosts.empty() && flags.hostfile.empty()) {
    if (!flags.env.empty()) {
      throw UsageError("--env {} is for other hosts (--hosts); here ranks have your environment",
                       flags.env.front());
    }
    return {};
  }
  if (!flags.hosts.empty() && !flags.hostfile.empty()) {
    throw UsageError("--hosts and --hostfile both name the hosts; give one of them");
  }
  for (const auto& [flag, value] :
       {std::pair("--local-nodes", flags.local_nodes), std::pair("--node-rank", flags.node_rank),
        std::pair("--master-addr", flags.master_addr),
        std::pair("--rdzv-endpoint", flags.rdzv_endpoint), std::pair("--nnodes", flags.nnodes)}) {
    if (!value.empty()) {
      throw UsageError(
          "{} {} and the hosts that are named contradict each other: each host is a "
          "node, and their rendezvous is here; leave {} out",
          flag, value, flag);
    }
  }
  return flags.hosts.empty() ? remote::read_hostfile(flags.hostfile)
                             : remote::parse_hosts(flags.hosts);
}

}  // namespace

int flag_number(const std::string& flag, const std::string& text, int min, int max) {
  const auto number = base::parse_integer(text, min, max);
  if (!number) {
    throw UsageError("{} {} is not a whole number in [{}, {}]", flag, text, min, max);
  }
  return static_cast<int>(*number);
}

std::chrono::nanoseconds flag_seconds(const std::string& flag, const std::string& text) {
  constexpr double kMaxSeconds = 86400;
  double seconds = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  if (error != std::errc() || end != text.data() + text.size() || !(seconds >= 0) ||
      seconds > kMaxSeconds) {
    throw UsageError("{} {} is not a number of seconds in [0, {}]", flag, text, kMaxSeconds);
  }
  return std::chrono::nanoseconds(std::llround(seconds * 1e9));
}

NodeRange parse_nnodes(const RunFlags& flags) {
  const std::string text = or_else(flags.nnodes, "1");
  const size_t colon = text.find(':');
  const auto min = base::parse_integer(text.substr(0, colon), 1, kMaxNodes);
  const auto max =
      colon == std::string::npos ? min : base::parse_integer(text.substr(colon + 1), 1, kMaxNodes);
  if (!min || !max || *min > *max) {
    throw UsageError("--nnodes {} is neither a number of nodes nor MIN:MAX, in [1, {}]", text,
                     kMaxNodes);
  }
  return {static_cast<int>(*min), static_cast<int>(*max)};
}

std::vector<int> parse_signals(const std::string& text) {
  static const std::map<std::string, int> kSignals = {{"SIGTERM", SIGTERM}, {"SIGINT", SIGINT},
                                                      {"SIGHUP", SIGHUP},   {"SIGQUIT", SIGQUIT},
                                                      {"SIGUSR1", SIGUSR1}, {"SIGUSR2", SIGUSR2}};
  std::vector<int> signals;
  for (const std::string& name : base::split(text, ',')) {
    const auto found = kSignals.find(name.starts_with("SIG") ? name : "SIG" + name);
    if (found == kSignals.end()) {
      throw UsageError(
          "--signals-to-handle {}: {} is not one of SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1 "
          "and SIGUSR2",
          text, name);
    }
    signals.push_back(found->second);
  }
  return signals;
}

RunHost RunHost::this_host() {
  const base::Env env;
  return {.num_cores = base::num_usable_cores(),
          .num_gpus = static_cast<int>(visible_gpus("", visible_devices()).size()),
          .is_for_cpu = env.text("LOCKSTEP_DEVICE").value_or("") == "cpu",
          .python = env.text("PYTHON_EXEC").value_or(""),
          .prefix_template = env.text("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE").value_or(""),
          .shutdown_timeout = env.text("TORCH_ELASTIC_SHUTDOWN_TIMEOUT").value_or("")};
}

LaunchOptions launch_options(const RunFlags& flags, const RunHost& host) {
  check_refused(flags);
  check_accepted(flags);
  LaunchOptions options;
  const NodeRange nodes = parse_nnodes(flags);
  options.min_nodes = nodes.min;
  options.max_nodes = nodes.max;
  options.local_nodes =
      flag_number("--local-nodes", or_else(flags.local_nodes, "1"), 1, kMaxLocalNodes);
  if (options.local_nodes > 1 && nodes.max > 1) {
    throw UsageError(
        "--local-nodes {} emulates nodes on this host alone, --nnodes {} are on several; give one "
        "of them",
        options.local_nodes, flags.nnodes);
  }
  options.hosts_count = is_counted(flags.nproc_per_node) && names_hosts(flags);
  options.procs_per_node =
      options.hosts_count ? 1 : procs_per_node(flags, host, options.local_nodes);
  options.rendezvous = rendezvous_options(flags, nodes);
  if (nodes.max == 1 && !flags.master_port.empty()) {
    options.master_port =
        static_cast<uint16_t>(flag_number("--master-port", flags.master_port, 0, UINT16_MAX));
  }
  options.max_restarts =
      flag_number("--max-restarts", or_else(flags.max_restarts, "0"), 0, INT32_MAX);
  options.role = or_else(flags.role, "default");
  const std::string grace = or_else(flags.stop_grace, host.shutdown_timeout);
  if (!grace.empty()) {
    options.stop_grace = flag_seconds(
        flags.stop_grace.empty() ? "TORCH_ELASTIC_SHUTDOWN_TIMEOUT" : "--stop-grace", grace);
  }
  if (!flags.signals_to_handle.empty()) {
    options.stop_signals = parse_signals(flags.signals_to_handle);
    options.signals_are_given = true;
  }
  options.isolation = base::parse_isolation(or_else(flags.isolation, "auto"));
  options.output = output_options(flags, host);
  options.placement = placement_options(flags);
  options.stages = stage_items(flags);
  options.container = container_options(flags);
  options.hosts = host_entries(flags);
  options.host_env = flags.env;
  if (!options.hosts.empty()) {
    options.min_nodes = options.max_nodes = static_cast<int>(options.hosts.size());
  }
  options.stdin_rank = stdin_rank(flags, options);
  options.command = make_command({.program = flags.program,
                                  .module = flags.module,
                                  .run_path = flags.run_path,
                                  .no_python = flags.no_python,
                                  .python = or_else(host.python, "python3"),
                                  .is_here = flags.image.empty()});
  return options;
}

}  // namespace lockstep::launch
