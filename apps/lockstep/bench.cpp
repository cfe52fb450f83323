#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <limits>
#include <optional>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include <lockstep/base/error.h>

#include "base/env.h"
#include "base/unique_fd.h"
#include "bench_network.h"
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
const Names kPeers = {"gloo", "none"};

constexpr const char* kDescription =
    "Measures a collective on ranks that it starts itself, beside libtorch's Gloo on the same "
    "ranks: allreduce, broadcast, allgather or reducescatter. A whole training step: lockstep "
    "bench ddp --help. The launcher, beside torchrun: lockstep bench launch --help. Weights from a "
    "file, beside torch.load: lockstep bench load --help. Samples from files, beside Python's "
    "DataLoader: lockstep bench data --help. Tokenizers: lockstep bench tokenize "
    "--help. What a checkpoint costs: lockstep bench checkpoint --help.";

constexpr const char* kExamples =
    "Examples:\n"
    "  lockstep bench allreduce --ranks 8 --bytes 4K,1M,25M,100M\n"
    "  lockstep bench allgather --ranks 4 --bytes 1M --dtype bfloat16 --json\n"
    "  lockstep bench allreduce --ranks 8 --local-nodes 2 --rate 1gbit --bytes 25M     as root\n"
    "\n"
    "Times are of the slowest rank. lockstep: on memory of Group::allocate(); staged: on ordinary\n"
    "tensors; of limit: against one pass over each rank's own memory. How it is measured:\n"
    "docs/concepts/bench.md. Exit code: 0; 1 for a wrong result or a lost rank; 2 for a mistake\n"
    "on this line.\n";

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
  const auto number = parse_integer(digits, 1, kMaxBytes >> shift);
  if (!number) {
    throw UsageError("--bytes: \"{}\" is not a size from 1 to 8G; write 4096, 4K, 25M or 1G", text);
  }
  return *number << shift;
}

std::vector<int64_t> parse_sizes(const std::string& list) {
  std::vector<int64_t> sizes;
  size_t begin = 0;
  while (begin <= list.size()) {
    const size_t end = std::min(list.find(',', begin), list.size());
    sizes.push_back(parse_size(list.substr(begin, end - begin)));
    begin = end + 1;
  }
  return sizes;
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
  std::string peer = "gloo";
  std::string rate;
  bool json = false;
};

struct Texts {
  std::string ranks = "4", bytes = "4K,1M,25M", nodes = "1", repeats = "3";
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
  app.add_option("--peer", request.peer, "Whom to measure beside us (gloo)")
      ->type_name("gloo|none");
  app.add_flag("--json", request.json,
               "Print one JSON object, raw times included, and nothing else");
  app.footer(kExamples);
}

void check_request(const Request& request) {
  check_one_of("--dtype", request.dtype, kTypes);
  check_one_of("--wire", request.wire, kWires);
  check_one_of("--peer", request.peer, kPeers);
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
}

// Of the host, as the kernel estimates it.
int64_t available_bytes() {
  const std::string text = read_file("/proc/meminfo");
  const std::string name = "MemAvailable:";
  const size_t line = text.find(name);
  if (line == std::string::npos) {
    return std::numeric_limits<int64_t>::max();
  }
  return std::strtoll(text.c_str() + line + name.size(), nullptr, 10) << 10;
}

void check_memory(const Request& request) {
  constexpr int kCopies = 3;  // memory of the group's, ordinary tensors, staging
  const int64_t largest = *std::max_element(request.sizes.begin(), request.sizes.end());
  const int64_t needed = largest * request.num_ranks * kCopies;
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
  check_request(request);
  return request;
}

std::string plan_of(const Request& request, const nlohmann::json& network) {
  const nlohmann::json plan{{"operation", request.operation},
                            {"bytes", request.sizes},
                            {"dtype", request.dtype},
                            {"wire", request.wire},
                            {"rate", request.rate},
                            {"repeats", request.repeats},
                            {"nodes", request.num_nodes},
                            {"peer", request.peer},
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
  LaunchOptions options{.name = "lockstep bench",
                        .procs_per_node = request->num_ranks / request->num_nodes,
                        .local_nodes = request->num_nodes,
                        .output = {.prefix = false}};
  check_memory(*request);
  const std::string program = find_torch_program();
  std::optional<BenchNetwork> network;
  auto nodes = nlohmann::json::array();
  if (!request->rate.empty()) {
    network.emplace(request->num_nodes, request->rate);
    for (const BenchNetwork::Node& node : network->nodes()) {
      nodes.push_back({{"pid", node.holder}, {"address", node.address}});
    }
    options.isolation = IsolationMode::Guardian;  // ranks find the networks by pid, in this /proc
  }
  options.command = {program, "bench", plan_of(*request, nodes)};
  return run_job(options);
}

}  // namespace lockstep::app
