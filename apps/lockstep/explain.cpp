#include <algorithm>
#include <array>
#include <optional>

#include <nlohmann/json.hpp>

#include <lockstep/base/error.h>

#include "base/env.h"
#include "commands.h"
#include "launch/launch.h"
#include "sibling_program.h"

namespace lockstep::app {

namespace {

constexpr int kDefaultRanks = 4;
// Told on two emulated nodes: they are about what crosses the network.
constexpr std::array kLessonsOnNodes = {"pretrained", "scratch"};
constexpr int kNodes = 2;
constexpr size_t kMaxRanks = 64;

std::optional<std::string> gradients_argument(const Arguments& arguments) {
  const std::string flag = "--gradients";
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].starts_with(flag + "=")) {
      return arguments[i].substr(flag.size() + 1);
    }
    if (arguments[i] == flag) {
      if (i + 1 == arguments.size()) {
        throw UsageError("--gradients needs a value, one row per rank: '[[1,2],[3,4]]'");
      }
      return arguments[i + 1];
    }
  }
  return std::nullopt;
}

// One rank per row of --gradients. Read here and not by lockstep-explain: asking it would load
// libtorch once more, a quarter of a second, before the first rank starts.
int num_ranks(const Arguments& arguments) {
  const auto text = gradients_argument(arguments);
  if (!text) {
    return kDefaultRanks;
  }
  const auto json = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_array() || json.empty() || json.size() > kMaxRanks ||
      !std::all_of(json.begin(), json.end(), [](const auto& row) { return row.is_array(); })) {
    throw UsageError(
        "--gradients {} is not a JSON array of 1 to {} rows, one per rank; for example "
        "'[[1,2],[3,4]]'",
        *text, kMaxRanks);
  }
  return static_cast<int>(json.size());
}

bool is_told_on_nodes(const Arguments& arguments) {
  return std::any_of(kLessonsOnNodes.begin(), kLessonsOnNodes.end(), [&](const char* lesson) {
    return std::find(arguments.begin(), arguments.end(), lesson) != arguments.end();
  });
}

bool asks_for_help(const Arguments& arguments) {
  return arguments.empty() ||
         std::any_of(arguments.begin(), arguments.end(),
                     [](const auto& argument) { return argument == "--help" || argument == "-h"; });
}

}  // namespace

int explain(const Arguments& arguments) {
  if (base::Env().has("LOCKSTEP_RANK") || asks_for_help(arguments)) {
    return exec_sibling("lockstep-explain", "explain", arguments);
  }
  const int nodes = is_told_on_nodes(arguments) ? kNodes : 1;
  launch::LaunchOptions options{.name = "lockstep explain",
                                .procs_per_node = std::max(num_ranks(arguments) / nodes, 1),
                                .local_nodes = nodes,
                                .output = {.prefix = false},
                                .quiet_code = 2,  // a mistake in the arguments, told by rank 0
                                .command = {find_sibling("lockstep-explain"), "explain"}};
  options.command.insert(options.command.end(), arguments.begin(), arguments.end());
  return launch::run_job(options);
}

}  // namespace lockstep::app
