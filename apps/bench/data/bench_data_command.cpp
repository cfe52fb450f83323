#include "bench/data/bench_data_command.h"

#include <chrono>
#include <cmath>
#include <functional>
#include <optional>
#include <sstream>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <lockstep/base/error.h>
#include <lockstep/data/distributed_sampler.h>
#include <lockstep/data/image_data.h>
#include <lockstep/data/loader.h>
#include <lockstep/data/token_data.h>

#include "bench/allreduce/bench_rank.h"
#include "bench/data/bench_data_files.h"
#include "bench/data/bench_data_peer.h"
#include "bench/figures.h"

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;
using Seconds = std::vector<double>;

constexpr int64_t kSequence = 1024;
constexpr int64_t kVocabulary = 50257;

struct DataBenchPlan {
  int64_t num_pictures = 0;
  int64_t token_megabytes = 0;
  int num_workers = 2;
  int64_t batch_size = 32;
  int repeats = 5;
  DataPeerOptions peer;  // no Python: no peer
  std::string folder;
  bool json = false;
};

struct DataBenchResult {
  int64_t picture_bytes = 0;
  int64_t token_bytes = 0;  // that a pass reads
  Seconds pictures_s;       // of a pass
  Seconds peer_s;           // empty without a peer
  Seconds tokens_s;
};

DataBenchPlan read_plan(const std::string& text) {
  try {
    const auto json = nlohmann::json::parse(text);
    DataBenchPlan plan{.num_pictures = json.at("num_pictures"),
                       .token_megabytes = json.at("token_megabytes"),
                       .num_workers = json.at("num_workers"),
                       .batch_size = json.at("batch_size"),
                       .repeats = json.at("repeats"),
                       .peer = {.python = json.at("python"), .script = json.at("peer_script")},
                       .folder = json.at("folder"),
                       .json = json.at("json")};
    plan.peer.num_workers = plan.num_workers;
    plan.peer.batch_size = plan.batch_size;
    return plan;
  } catch (const nlohmann::json::exception& error) {
    throw UsageError("there is no plan ({}); start it as `lockstep bench data`", error.what());
  }
}

// One pass over all samples in a random order, in seconds.
double read_all(Loader& loader, const DataBenchPlan& plan, int64_t epoch) {
  const DistributedSampler sampler({.num_samples = loader.dataset().size()});
  const std::vector<int64_t> indices = sampler.indices(epoch);
  const auto begin = std::chrono::steady_clock::now();
  loader.start(indices, plan.batch_size, 0, epoch);
  int64_t count = 0;
  while (const auto batch = loader.next()) {
    count += batch->target.size(0);
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  LOCKSTEP_CHECK(count == loader.dataset().size(), "{} samples came", count);
  return seconds.count();
}

DataBenchResult measure(const DataBenchPlan& plan) {
  const BenchFolder folder(plan.folder);
  DataBenchResult result;
  result.picture_bytes = write_bench_pictures(folder.at("pictures"), plan.num_pictures);
  write_bench_tokens(folder.at("tokens.bin"), plan.token_megabytes);
  const LoaderOptions options{.num_workers = plan.num_workers};
  Loader pictures(open_image_folder(folder.at("pictures"), {.augment = true}), options);
  Loader tokens(open_tokens({folder.at("tokens.bin")},
                            {.sequence_length = kSequence, .vocab_size = kVocabulary}),
                options);
  result.token_bytes = tokens.dataset().size() * kSequence * 2;
  DataPeer peer(plan.peer, folder.at("pictures"));
  read_all(pictures, plan, 0);  // warm, as the peer is
  read_all(tokens, plan, 0);
  for (int i = 1; i <= plan.repeats; ++i) {
    result.pictures_s.push_back(read_all(pictures, plan, i));
    if (peer.is_present()) {
      result.peer_s.push_back(peer.read_all(plan.num_pictures));
    }
    result.tokens_s.push_back(read_all(tokens, plan, i));
  }
  return result;
}

double rounded(double value) {
  return std::round(value * 1e4) / 1e4;
}

std::string to_json(const DataBenchPlan& plan, const DataBenchResult& result) {
  const auto per_s = [&](const Seconds& seconds) {
    return rounded(static_cast<double>(plan.num_pictures) / median(seconds));
  };
  const bool has_peer = !result.peer_s.empty();
  Json json{
      {"pictures", plan.num_pictures},
      {"picture_bytes", result.picture_bytes},
      {"token_bytes", result.token_bytes},
      {"workers", plan.num_workers},
      {"batch", plan.batch_size},
      {"repeats", plan.repeats},
      {"samples_per_s", per_s(result.pictures_s)},
      {"peer", nullptr},
      {"peer_samples_per_s", nullptr},
      {"speedup", nullptr},
      {"token_gb_per_s",
       rounded(static_cast<double>(result.token_bytes) / 1e9 / median(result.tokens_s))},
      {"raw_s",
       {{"pictures", result.pictures_s}, {"peer", result.peer_s}, {"tokens", result.tokens_s}}}};
  if (has_peer) {
    json["peer"] = "torchvision";
    json["peer_samples_per_s"] = per_s(result.peer_s);
    json["speedup"] = rounded(median(result.peer_s) / median(result.pictures_s));
  }
  return json.dump() + "\n";
}

std::string to_table(const DataBenchPlan& plan, const DataBenchResult& result) {
  const auto count = static_cast<double>(plan.num_pictures);
  std::string text = fmt::format(
      "{} pictures of 500 x 375 to 224 x 224, batches of {}, {} workers, medians of {}\n\n",
      plan.num_pictures, plan.batch_size, plan.num_workers, plan.repeats);
  text +=
      fmt::format("  {:<12} {:>9.0f} samples/s\n", "lockstep", count / median(result.pictures_s));
  if (!result.peer_s.empty()) {
    text += fmt::format("  {:<12} {:>9.0f} samples/s; lockstep is {:.1f} times as fast\n",
                        "torchvision", count / median(result.peer_s),
                        median(result.peer_s) / median(result.pictures_s));
  }
  text += fmt::format("  {:<12} {:>9.2f} GB/s of the file, as int64 sequences of {}\n", "tokens",
                      static_cast<double>(result.token_bytes) / 1e9 / median(result.tokens_s),
                      kSequence);
  return text;
}

}  // namespace

int bench_data_command(const std::string& text) {
  const DataBenchPlan plan = read_plan(text);
  const DataBenchResult result = measure(plan);
  print_now(plan.json ? to_json(plan, result) : to_table(plan, result));
  return 0;
}

}  // namespace lockstep
