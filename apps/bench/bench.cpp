#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <limits>
#include <optional>
#include <unistd.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <lockstep/base/error.h>

#include "base/env.h"
#include "base/process/cores.h"
#include "base/unique_fd.h"
#include "bench/allreduce/bench_mpi.h"
#include "bench/bench_network.h"
#include "command_line.h"
#include "commands.h"
#include "launch/launch.h"
#include "torch_program.h"

namespace lockstep::app {

namespace {

constexpr int kMaxRanks = 64;  // their sums of small numbers are exact in every type
constexpr int kMaxRepeats = 1000;
constexpr int64_t kMaxBytes = int64_t{8} << 30;

const Names kOperations = {"allreduce", "broadcast", "allgather", "reducescatter", "ddp",
                           "data",      "launch",    "load",      "tokenize",      "checkpoint"};
const Names kTypes = {"float32", "float64", "float16", "bfloat16"};
const Names kWires = {"full", "bfloat16", "float16"};
const Names kPeers = {"gloo", "openmpi", "mpich", "intelmpi"};  // or "none", alone

constexpr const char* kDescription =
    "Measures a collective on ranks that it starts itself, beside libtorch's Gloo on the same "
    "ranks: allreduce (also beside MPIs), broadcast, allgather or reducescatter. A whole training "
    "step: lockstep "
    "bench ddp --help. The launcher, beside torchrun: lockstep bench launch --help. Weights from a "
    "file, beside torch.load: lockstep bench load --help. Samples from files, beside Python's "
    "DataLoader: lockstep bench data --help. Tokenizers: lockstep bench tokenize "
    "--help. What a checkpoint costs: lockstep bench checkpoint --help.";

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

int64_t parse_size(const std::string& text) {
  std::string digits = text;
  int shift = 0;
  if (!digits.empty()) {
    switch (std::toupper(static_cast<unsigned char>(digits.back()))) {
      case 'K':
        shift = 10;
        break;
      case 'M':
        shift = 20;
        break;
      case 'G':
        shift = 30;
        break;
      default:
        break;
    }
    digits.resize(digits.size() - (shift > 0 ? 1 : 0));
  }
  const auto number = base::parse_integer(digits, 1, kMaxBytes >> shift);
  if (!number) {
    throw UsageError("--bytes: \"{}\" is not a size from 1 to 8G; write 4096, 4K, 25M or 1G", text);
  }
  return *number << shift;
}

Names split_list(const std::string& list) {
  Names parts;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    parts.push_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

std::vector<int64_t> parse_sizes(const std::string& list) {
  std::vector<int64_t> sizes;
  for (const std::string& text : split_list(list)) {
    sizes.push_back(parse_size(text));
  }
  return sizes;
}

Names parse_peers(const std::string& list) {
  if (list == "none") {
    return {};
  }
  Names peers = split_list(list);
  for (size_t i = 0; i < peers.size(); ++i) {
    check_one_of("--peer", peers[i], kPeers);
    if (std::find(peers.begin(), peers.begin() + static_cast<long>(i), peers[i]) !=
        peers.begin() + static_cast<long>(i)) {
      throw UsageError("--peer {} names {} twice", list, peers[i]);
    }
  }
  return peers;
}

int64_t element_bytes(const std::string& dtype) {
  return dtype == "float64" ? 8 : dtype == "float32" ? 4 : 2;
}

// The command line, checked: what the ranks need to know of it is their plan.
struct Request {
  std::string operation;
  std::vector<int64_t> sizes;
  int num_ranks = 0;
  int num_nodes = 0;
  int repeats = 0;
  std::string dtype = "float32";
  std::string wire = "full";
  Names peers;  // in the order in which they were named
  std::string mpi_home;
  std::string rate;
  bool json = false;
};

struct Texts {
  std::string ranks = "4", bytes = "4K,1M,25M", nodes = "1", repeats = "3", peers = "gloo";
};

void add_flags(CLI::App& app, Request& request, Texts& texts) {
  app.add_option("--ranks", texts.ranks, "Ranks in all (4)")->type_name("N");
  app.add_option("--bytes", texts.bytes, "Sizes, as 4096,64K,1M,1G (4K,1M,25M)")->type_name("LIST");
  app.add_option("--local-nodes", texts.nodes, "Nodes to emulate on this host (1)")->type_name("M");
  app.add_option("--rate", request.rate,
                 "What each node may send per second, as 100mbit or 1gbit: gives each a network "
                 "of its own; needs root")
      ->type_name("RATE");
  app.add_option("--dtype", request.dtype, "Type of the elements (float32)")
      ->type_name("float32|float64|float16|bfloat16");
  app.add_option("--wire", request.wire, "In what form float32 goes between nodes (full)")
      ->type_name("full|bfloat16|float16");
  app.add_option("--repeats", texts.repeats, "The median of so many medians counts (3)")
      ->type_name("R");
  app.add_option("--peer", texts.peers,
                 "Whom to measure beside us (gloo); MPIs only for an all-reduce on one node")
      ->type_name("none|LIST of gloo,openmpi,mpich,intelmpi");
  app.add_option("--mpi-home", request.mpi_home,
                 "Where bench/mpi_pack.py has put MPIs (LOCKSTEP_MPI_HOME)")
      ->type_name("FOLDER");
  app.add_flag("--json", request.json,
               "Print one JSON object, raw times included, and nothing else");
  app.footer(kExamples);
}

Names mpi_names(const Request& request) {
  Names names = request.peers;
  names.erase(std::remove(names.begin(), names.end(), "gloo"), names.end());
  return names;
}

// What an MPI can be asked for.
void check_mpi(const Request& request) {
  const Names names = mpi_names(request);
  if (names.empty()) {
    return;
  }
  if (request.operation != "allreduce") {
    throw UsageError("--peer {}: an MPI is measured beside allreduce only, not {}", names[0],
                     request.operation);
  }
  if (request.num_nodes > 1) {
    throw UsageError(
        "--peer {} would share the memory of one node, and --local-nodes is {}; measure it on one",
        names[0], request.num_nodes);
  }
  if (element_bytes(request.dtype) < 4) {
    throw UsageError("--peer {}: MPI does not sum {}; take float32 or float64", names[0],
                     request.dtype);
  }
  const int64_t most = std::numeric_limits<int>::max() * element_bytes(request.dtype);
  const int64_t largest = *std::max_element(request.sizes.begin(), request.sizes.end());
  if (largest > most) {
    throw UsageError("--bytes {} is too much for --peer {}: MPI_Allreduce takes at most {} of {}",
                     largest, names[0], most, request.dtype);
  }
}

void check_request(const Request& request) {
  check_one_of("--dtype", request.dtype, kTypes);
  check_one_of("--wire", request.wire, kWires);
  if (request.num_ranks % request.num_nodes != 0) {
    throw UsageError("--ranks {} cannot be dealt equally to --local-nodes {}", request.num_ranks,
                     request.num_nodes);
  }
  const bool is_shared = request.operation == "allgather" || request.operation == "reducescatter";
  const int64_t least = element_bytes(request.dtype) * (is_shared ? request.num_ranks : 1);
  for (const int64_t size : request.sizes) {
    if (size < least) {
      throw UsageError("--bytes {} is too little: {} of {} on {} ranks needs {} or more", size,
                       request.operation, request.dtype, request.num_ranks, least);
    }
  }
  if (!request.rate.empty()) {
    if (request.num_nodes < 2) {
      throw UsageError("--rate {} limits what goes between nodes; give --local-nodes 2 or more",
                       request.rate);
    }
    check_rate(request.rate);
  }
  check_mpi(request);
}

// Of the host, as the kernel estimates it.
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
  // Memory of the group's, ordinary tensors, staging; of an MPI: buffers, and what it adds to them.
  const int64_t copies = 3 + 2 * static_cast<int64_t>(mpi_names(request).size());
  const int64_t largest = *std::max_element(request.sizes.begin(), request.sizes.end());
  const int64_t needed = largest * request.num_ranks * copies;
  const int64_t available = available_bytes();
  if (needed > available) {
    throw UsageError("--bytes {} on {} ranks needs about {} MiB of memory, there are {}", largest,
                     request.num_ranks, needed >> 20, available >> 20);
  }
}

// Nothing if it was --help.
std::optional<Request> parse_request(const Arguments& arguments) {
  Request request;
  Texts texts;
  CLI::App app(kDescription, "lockstep bench OPERATION");
  add_flags(app, request, texts);
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
  request.operation = arguments[0];
  check_one_of("operation", request.operation, kOperations);
  if (!split.command.empty()) {
    throw UsageError("there is no place for \"{}\" on this line", split.command[0]);
  }
  request.num_ranks = static_cast<int>(whole_number("--ranks", texts.ranks, 2, kMaxRanks));
  request.num_nodes = static_cast<int>(whole_number("--local-nodes", texts.nodes, 1, kMaxRanks));
  request.repeats = static_cast<int>(whole_number("--repeats", texts.repeats, 1, kMaxRepeats));
  request.sizes = parse_sizes(texts.bytes);
  request.peers = parse_peers(texts.peers);
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
  const bool has_any = !search.found.empty() || mpi_names(request) != request.peers;
  if (!request.peers.empty() && !has_any) {
    throw UsageError("no peer of --peer {} is here ({})", fmt::join(request.peers, ","), reasons);
  }
  for (const auto& [name, reason] : search.missing) {
    fmt::print(stderr, "lockstep bench: {} is left out: {}\n", name, reason);
  }
}

nlohmann::json mpi_of(const MpiSearch& search) {
  auto list = nlohmann::json::array();
  for (const MpiPeer& peer : search.found) {
    list.push_back({{"name", peer.name}, {"command", peer.command}});
  }
  return list;
}

// Those that are measured, in the order in which they were named.
Names present_peers(const Request& request, const MpiSearch& search) {
  Names names;
  for (const std::string& name : request.peers) {
    if (!search.missing.contains(name)) {
      names.push_back(name);
    }
  }
  return names;
}

std::string plan_of(const Request& request, const MpiSearch& search,
                    const nlohmann::json& network) {
  const nlohmann::json plan{{"operation", request.operation},
                            {"bytes", request.sizes},
                            {"dtype", request.dtype},
                            {"wire", request.wire},
                            {"rate", request.rate},
                            {"repeats", request.repeats},
                            {"nodes", request.num_nodes},
                            {"peers", present_peers(request, search)},
                            {"mpi", mpi_of(search)},
                            {"missing", search.missing},
                            {"json", request.json},
                            {"bars", ::isatty(STDOUT_FILENO) == 1},
                            {"network", network}};
  return plan.dump();
}

}  // namespace

int bench(const Arguments& arguments) {
  if (!arguments.empty() && arguments[0] == "checkpoint") {
    return bench_checkpoint({arguments.begin() + 1, arguments.end()});
  }
  if (!arguments.empty() && arguments[0] == "ddp") {
    return bench_ddp({arguments.begin() + 1, arguments.end()});
  }
  if (!arguments.empty() && arguments[0] == "data") {
    return bench_data({arguments.begin() + 1, arguments.end()});
  }
  if (!arguments.empty() && arguments[0] == "launch") {
    return bench_launch({arguments.begin() + 1, arguments.end()});
  }
  if (!arguments.empty() && arguments[0] == "load") {
    return bench_load({arguments.begin() + 1, arguments.end()});
  }
  if (!arguments.empty() && arguments[0] == "tokenize") {
    return bench_tokenize({arguments.begin() + 1, arguments.end()});
  }
  const auto request = parse_request(arguments);
  if (!request) {
    return 0;
  }
  launch::LaunchOptions options{.name = "lockstep bench",
                                .procs_per_node = request->num_ranks / request->num_nodes,
                                .local_nodes = request->num_nodes,
                                .output = {.prefix = false}};
  check_memory(*request);
  const MpiPrograms mpi({.names = mpi_names(*request),
                         .home = request->mpi_home,
                         .num_ranks = request->num_ranks,
                         .num_cores = base::num_usable_cores()});
  check_found(*request, mpi.search());
  const std::string program = find_torch_program();
  std::optional<BenchNetwork> network;
  auto nodes = nlohmann::json::array();
  if (!request->rate.empty()) {
    network.emplace(request->num_nodes, request->rate);
    for (const BenchNetwork::Node& node : network->nodes()) {
      nodes.push_back({{"pid", node.holder}, {"address", node.address}});
    }
    options.isolation =
        base::IsolationMode::Guardian;  // ranks find the networks by pid, in this /proc
  }
  options.command = {program, "bench", plan_of(*request, mpi.search(), nodes)};
  return launch::run_job(options);
}

}  // namespace lockstep::app
