#include <algorithm>
#include <cstdlib>
#include <limits>
#include <optional>
#include <string_view>
#include <unistd.h>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "base/env.h"
#include "base/process/cores.h"
#include "base/unique_fd.h"
#include "bench/allreduce/bench_mpi.h"
#include "bench/bench_network.h"
#include "bench/flags.h"
#include "command_line.h"
#include "commands.h"
#include "launch/launch.h"
#include "sibling_program.h"

namespace lockstep::app {

namespace {

constexpr int kMaxRanks = 64;  // their sums of small numbers are exact in every type
constexpr int kMaxRepeats = 1000;
constexpr int64_t kMaxBytes = int64_t{8} << 30;

const Names kOperations = {"allreduce", "broadcast",  "allgather", "reducescatter",
                           "ddp",       "data",       "launch",    "load",
                           "tokenize",  "checkpoint", "gpu",       "gpu-parity"};
const Names kTypes = {"float32", "float64", "float16", "bfloat16"};
const Names kWires = {"full", "bfloat16", "float16"};
const Names kPeers = {"gloo", "openmpi", "mpich", "intelmpi", "none"};

constexpr const char* kDescription =
    "Measures a collective on ranks that it starts itself, beside libtorch's Gloo on the same "
    "ranks: allreduce (also beside MPIs), broadcast, allgather or reducescatter. A whole training "
    "step: lockstep "
    "bench ddp --help. The launcher, beside torchrun: lockstep bench launch --help. Weights from a "
    "file, beside torch.load: lockstep bench load --help. Samples from files, beside Python's "
    "DataLoader: lockstep bench data --help. Tokenizers: lockstep bench tokenize "
    "--help. What a checkpoint costs: lockstep bench checkpoint --help. Whether a GPU computes "
    "what "
    "the CPU does: lockstep bench gpu-parity --help. Its kernels: lockstep bench gpu --help.";

constexpr const char* kExamples =
    "Examples:\n"
    "  lockstep bench allreduce --ranks 8 --bytes 4K,1M,25M,100M\n"
    "  lockstep bench allreduce --ranks 4 --peer gloo,openmpi,mpich,intelmpi --json\n"
    "  lockstep bench allgather --ranks 4 --bytes 1M --dtype bfloat16 --json\n"
    "  lockstep bench allreduce --ranks 8 --local-nodes 2 --rate 1gbit --bytes 25M     as root\n"
    "\n"
    "Times are of the slowest rank, from when the last one has come. lockstep: on memory of\n"
    "Group::allocate(); staged: on ordinary tensors; from 1st: the same, from when the first rank\n"
    "has come. An MPI that is not here is named and left out; it is looked for in --mpi-home, in\n"
    "PATH and in I_MPI_ROOT. How it is measured: docs/concepts/bench.md. Exit code: 0; 1 for a "
    "wrong\n"
    "result or a lost rank; 2 for a mistake on this line, or if no peer of --peer is here.\n";

int64_t element_bytes(const std::string& dtype) {
  return dtype == "float64" ? 8 : dtype == "float32" ? 4 : 2;
}

// The command line, checked: what the ranks need to know of it is their plan.
struct Request {
  BenchPlan plan{.peers = {"gloo"}};
  int num_ranks = 4;
  std::string mpi_home;
};

void add_flags(CLI::App& app, Request& request) {
  BenchPlan& plan = request.plan;
  show_defaults(app);
  app.add_option("--ranks", request.num_ranks, "Ranks on all nodes together")
      ->check(CLI::Range(2, kMaxRanks));
  app.add_option("--bytes", plan.bytes, "Sizes, as 4096,64K,1M,1G")
      ->delimiter(',')
      ->type_name("LIST")
      ->transform(size_in(1, kMaxBytes));
  app.add_option("--local-nodes", plan.nodes, "Nodes to emulate on this host")
      ->check(CLI::Range(1, kMaxRanks));
  app.add_option("--rate", plan.rate,
                 "What each node may send per second, as 100mbit or 1gbit: gives each a network "
                 "of its own; needs root")
      ->type_name("RATE");
  app.add_option("--dtype", plan.dtype, "Type of the elements")->check(CLI::IsMember(kTypes));
  app.add_option("--wire", plan.wire, "In what form float32 goes between nodes")
      ->check(CLI::IsMember(kWires));
  app.add_option("--repeats", plan.repeats, "How often to measure; the median of medians counts")
      ->check(CLI::Range(1, kMaxRepeats));
  app.add_option("--peer", plan.peers,
                 "Whom to measure beside us, as gloo,openmpi; MPIs only for an all-reduce on one "
                 "node; none alone: nobody")
      ->delimiter(',')
      ->type_name("LIST")
      ->check(CLI::IsMember(kPeers));
  app.add_option("--mpi-home", request.mpi_home,
                 "Where bench/mpi_pack.py has put MPIs (LOCKSTEP_MPI_HOME)")
      ->type_name("FOLDER");
  add_json_flag(app, plan.json);
  app.footer(kExamples);
}

// "none" stands alone, and nobody is named twice.
void check_peers(Names& peers) {
  if (peers == Names{"none"}) {
    peers.clear();
  }
  for (auto peer = peers.begin(); peer != peers.end(); ++peer) {
    if (*peer == "none") {
      throw UsageError("--peer {}: none stands alone", fmt::join(peers, ","));
    }
    if (std::find(peers.begin(), peer, *peer) != peer) {
      throw UsageError("--peer {} names {} twice", fmt::join(peers, ","), *peer);
    }
  }
}

Names mpi_names(const Request& request) {
  Names names = request.plan.peers;
  names.erase(std::remove(names.begin(), names.end(), "gloo"), names.end());
  return names;
}

// Throws UsageError for what an MPI cannot be asked for.
void check_mpi(const Request& request) {
  const Names names = mpi_names(request);
  if (names.empty()) {
    return;
  }
  if (request.plan.operation != "allreduce") {
    throw UsageError("--peer {}: an MPI is measured beside allreduce only, not {}", names[0],
                     request.plan.operation);
  }
  if (request.plan.nodes > 1) {
    throw UsageError(
        "--peer {} would share the memory of one node, and --local-nodes is {}; measure it on one",
        names[0], request.plan.nodes);
  }
  if (element_bytes(request.plan.dtype) < 4) {
    throw UsageError("--peer {}: MPI does not sum {}; take float32 or float64", names[0],
                     request.plan.dtype);
  }
  const int64_t most = std::numeric_limits<int>::max() * element_bytes(request.plan.dtype);
  const int64_t largest = *std::max_element(request.plan.bytes.begin(), request.plan.bytes.end());
  if (largest > most) {
    throw UsageError("--bytes {} is too much for --peer {}: MPI_Allreduce takes at most {} of {}",
                     largest, names[0], most, request.plan.dtype);
  }
}

void check_request(const Request& request) {
  if (request.num_ranks % request.plan.nodes != 0) {
    throw UsageError("--ranks {} cannot be dealt equally to --local-nodes {}", request.num_ranks,
                     request.plan.nodes);
  }
  const bool is_shared =
      request.plan.operation == "allgather" || request.plan.operation == "reducescatter";
  const int64_t least = element_bytes(request.plan.dtype) * (is_shared ? request.num_ranks : 1);
  for (const int64_t size : request.plan.bytes) {
    if (size < least) {
      throw UsageError("--bytes {} is too little: {} of {} on {} ranks needs {} or more", size,
                       request.plan.operation, request.plan.dtype, request.num_ranks, least);
    }
  }
  if (!request.plan.rate.empty()) {
    if (request.plan.nodes < 2) {
      throw UsageError("--rate {} limits what goes between nodes; give --local-nodes 2 or more",
                       request.plan.rate);
    }
    check_rate(request.plan.rate);
  }
  check_mpi(request);
}

// Returns the memory of the host that is free, as the kernel estimates it.
int64_t available_bytes() {
  const std::string text = base::read_file("/proc/meminfo");
  const std::string name = "MemAvailable:";
  const size_t line = text.find(name);
  if (line == std::string::npos) {
    return std::numeric_limits<int64_t>::max();
  }
  return std::strtoll(text.c_str() + line + name.size(), nullptr, 10) << 10;
}

void check_memory(const Request& request) {
  // There are the memory of the group, ordinary tensors and staging; an MPI has buffers of its own
  // and adds as much to them.
  const int64_t copies = 3 + 2 * static_cast<int64_t>(mpi_names(request).size());
  const int64_t largest = *std::max_element(request.plan.bytes.begin(), request.plan.bytes.end());
  const int64_t needed = largest * request.num_ranks * copies;
  const int64_t available = available_bytes();
  if (needed > available) {
    throw UsageError("--bytes {} on {} ranks needs about {} MiB of memory, there are {}", largest,
                     request.num_ranks, needed >> 20, available >> 20);
  }
}

// Returns nothing if the line was --help, which is then printed.
std::optional<Request> parse_request(const Arguments& arguments) {
  Request request;
  CLI::App app(kDescription, "lockstep bench OPERATION");
  add_flags(app, request);
  const bool has_operation = !arguments.empty() && !arguments[0].starts_with('-');
  SplitArguments split =
      split_arguments(app, {arguments.begin() + (has_operation ? 1 : 0), arguments.end()});
  if (arguments.empty()) {
    split.flags.emplace_back("--help");
  }
  if (!parse_flags(app, std::move(split.flags))) {
    return std::nullopt;
  }
  if (!has_operation) {
    throw UsageError("say first what to measure: {}", joined(kOperations));
  }
  request.plan.operation = arguments[0];
  check_one_of("operation", request.plan.operation, kOperations);
  if (!split.command.empty()) {
    throw UsageError("there is no place for \"{}\" on this line", split.command[0]);
  }
  request.plan.bars = ::isatty(STDOUT_FILENO) == 1;
  check_peers(request.plan.peers);
  if (request.mpi_home.empty()) {
    request.mpi_home = base::Env().text("LOCKSTEP_MPI_HOME").value_or("");
  }
  check_request(request);
  return request;
}

// The missing ones are told of, and the run goes on without them. Throws UsageError if nobody of
// those who were asked for is left.
void check_found(const Request& request, const MpiSearch& search) {
  std::string reasons;
  for (const auto& [name, reason] : search.missing) {
    reasons += fmt::format("{}{}: {}", reasons.empty() ? "" : "; ", name, reason);
  }
  const bool has_any = !search.found.empty() || mpi_names(request) != request.plan.peers;
  if (!request.plan.peers.empty() && !has_any) {
    throw UsageError("no peer of --peer {} is here ({})", fmt::join(request.plan.peers, ","),
                     reasons);
  }
  for (const auto& [name, reason] : search.missing) {
    fmt::print(stderr, "lockstep bench: {} is left out: {}\n", name, reason);
  }
}

// What the search for MPIs has found becomes part of the plan; who is missing is measured no more.
void take_found(BenchPlan& plan, const MpiSearch& search) {
  plan.mpi = search.found;
  plan.missing = search.missing;
  std::erase_if(plan.peers, [&](const std::string& name) { return plan.missing.contains(name); });
}

// The topics that have a command line of their own.
struct Topic {
  std::string_view name;
  int (*function)(const Arguments& arguments);
};

constexpr Topic kTopics[] = {{"checkpoint", bench_checkpoint},
                             {"data", bench_data},
                             {"ddp", bench_ddp},
                             {"gpu", bench_gpu},
                             {"gpu-parity", bench_gpu_parity},
                             {"launch", bench_launch},
                             {"load", bench_load},
                             {"tokenize", bench_tokenize}};

}  // namespace

int bench(const Arguments& arguments) {
  for (const Topic& topic : kTopics) {
    if (!arguments.empty() && arguments[0] == topic.name) {
      return topic.function({arguments.begin() + 1, arguments.end()});
    }
  }
  auto request = parse_request(arguments);
  if (!request) {
    return 0;
  }
  launch::LaunchOptions options{.name = "lockstep bench",
                                .procs_per_node = request->num_ranks / request->plan.nodes,
                                .local_nodes = request->plan.nodes,
                                .output = {.prefix = false}};
  check_memory(*request);
  const MpiPrograms mpi({.names = mpi_names(*request),
                         .home = request->mpi_home,
                         .num_ranks = request->num_ranks,
                         .num_cores = base::num_usable_cores()});
  check_found(*request, mpi.search());
  take_found(request->plan, mpi.search());
  const std::string program = find_sibling("lockstep-bench");
  std::optional<BenchNetwork> network;
  if (!request->plan.rate.empty()) {
    network.emplace(request->plan.nodes, request->plan.rate);
    for (const BenchNetwork::Node& node : network->nodes()) {
      request->plan.network.push_back({.pid = node.holder, .address = node.address});
    }
    options.isolation =
        base::IsolationMode::Guardian;  // ranks find the networks by pid, in this /proc
  }
  options.command = {program, "bench", plan_text(request->plan)};
  return launch::run_job(options);
}

}  // namespace lockstep::app
