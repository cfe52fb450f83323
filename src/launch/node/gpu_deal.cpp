#include "launch/node/gpu_deal.h"

#include <algorithm>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "launch/node/gpus.h"

namespace lockstep::launch {

namespace {

bool are_mig(const std::vector<std::string>& gpus) {
  return !gpus.empty() && gpus.front().starts_with("MIG-");
}

std::string part_of(const std::vector<std::string>& gpus, int begin, int count) {
  const auto first = gpus.begin() + begin;
  return fmt::format("{}", fmt::join(first, first + count, ","));
}

// What --virtual-local-rank deals out. Where no driver is found, the list is taken at its word.
std::vector<std::string> gpus_to_deal(const GpuDealOptions& options) {
  return options.one_each && options.gpus.empty() && options.visible
             ? visible_entries(*options.visible)
             : options.gpus;
}

void check_one_each(const GpuDealOptions& options, const std::vector<std::string>& gpus) {
  const int num_ranks = options.num_nodes * options.procs_per_node;
  const int num_gpus = static_cast<int>(gpus.size());
  const bool are_known = num_gpus > 0 || options.visible;
  if (!are_known || num_gpus >= num_ranks || (options.share && num_gpus > 0)) {
    return;
  }
  throw UsageError(
      "--virtual-local-rank: {} {} GPU{}, none for rank {} of this host; start at most {}{}",
      options.visible ? fmt::format("CUDA_VISIBLE_DEVICES={} names", *options.visible)
                      : std::string("this host has"),
      num_gpus, num_gpus == 1 ? "" : "s", num_gpus,
      num_gpus == 1 ? "one rank" : fmt::format("{} ranks", num_gpus),
      num_gpus > 0 ? ", or let them share by --share-gpu" : "");
}

}  // namespace

std::vector<RankGpu> deal_gpus(const GpuDealOptions& options) {
  const std::vector<std::string> gpus = gpus_to_deal(options);
  if (options.one_each) {
    check_one_each(options, gpus);
  }
  const int num_gpus = static_cast<int>(gpus.size());
  const int num_ranks = options.num_nodes * options.procs_per_node;
  std::vector<RankGpu> dealt(static_cast<size_t>(num_ranks));
  for (int on_host = 0; on_host < num_ranks; ++on_host) {
    RankGpu& rank = dealt[static_cast<size_t>(on_host)];
    const int gpu = options.share && num_gpus > 0 ? on_host % num_gpus : on_host;
    if (options.one_each && num_gpus == 0) {  // unknown: the number may mean something to CUDA
      rank = {.visible = std::to_string(on_host), .number = 0};
    } else if ((options.one_each || are_mig(gpus)) && gpu < num_gpus) {
      rank = {.visible = gpus[static_cast<size_t>(gpu)], .number = 0};
    } else if (options.num_nodes > 1 && num_ranks <= num_gpus && !are_mig(gpus)) {
      const int local = on_host % options.procs_per_node;
      rank = {.visible = part_of(gpus, on_host - local, options.procs_per_node), .number = local};
    } else {
      rank.number = gpu;
    }
  }
  return dealt;
}

}  // namespace lockstep::launch
