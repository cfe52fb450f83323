#include "weights/load_mode.h"

#include <lockstep/base/error.h>

namespace lockstep::weights {

namespace {

// Below it, synchronising after each window costs more than reading everything.
constexpr uint64_t kSmallBytes = 1 << 20;

}  // namespace
}  // namespace lockstep::weights

std::string_view lockstep::name_of(LoadMode mode) {
  switch (mode) {
    case LoadMode::Auto:
      return "auto";
    case LoadMode::Each:
      return "each";
    case LoadMode::Rank0:
      return "rank0";
    case LoadMode::Cooperative:
      return "cooperative";
  }
  throw UsageError("a load mode numbered {} does not exist", static_cast<int>(mode));
}

namespace lockstep::weights {

LoadChoice choose_mode(LoadMode asked, const LoadSituation& situation) {
  if (asked != LoadMode::Auto) {
    if (asked != LoadMode::Each && !situation.same_tensors) {
      throw UsageError(
          "{}: the ranks ask for different tensors, which {} cannot serve; ask for the same ones "
          "or load with mode each",
          situation.location, name_of(asked));
    }
    return {.mode = asked, .reason = {}};
  }
  if (situation.num_ranks == 1) {
    return {LoadMode::Each, "there is one rank"};
  }
  if (!situation.same_tensors) {
    return {LoadMode::Each, "the ranks ask for different tensors"};
  }
  if (!situation.seen_by_all) {
    return {LoadMode::Rank0, "not every rank can open the files, and rank 0 can"};
  }
  if (situation.bytes < kSmallBytes) {
    const bool is_near = !situation.is_remote && situation.num_nodes == 1;
    return is_near ? LoadChoice{LoadMode::Each, "so little is read at once by everybody"}
                   : LoadChoice{LoadMode::Rank0, "so little is not worth a request of every rank"};
  }
  return {LoadMode::Cooperative,
          fmt::format("{} ranks on {} node{} read a share each, once", situation.num_ranks,
                      situation.num_nodes, situation.num_nodes == 1 ? "" : "s")};
}

}  // namespace lockstep::weights
