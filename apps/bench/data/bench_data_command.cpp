#include "bench/data/bench_data_command.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <vector>

#include <lockstep/base/error.h>
#include <lockstep/data/distributed_sampler.h>
#include <lockstep/data/image_data.h>
#include <lockstep/data/loader.h>
#include <lockstep/data/token_data.h>

#include "bench/allreduce/bench_rank.h"
#include "bench/data/bench_data_files.h"
#include "bench/data/bench_data_peer.h"
#include "bench/data/bench_data_result.h"

namespace lockstep {
namespace {

constexpr int64_t kVocabulary = 50257;
constexpr int64_t kCheckedPictures = 8;
// How far a picture's pixels may lie from the peer's on average, in steps of 1/255. Rounding to
// bytes makes 0.3, another version of libjpeg a little more; a crop that is one pixel off, 3.
constexpr double kMaxPixelDifference = 1.5;

// Makes one pass over all samples in a random order and returns its seconds.
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

// Returns the largest mean difference between a picture here and at the peer, both as an
// evaluation sees them: no dice are in that. Throws InternalError if it is too large.
double compare_pixels(DataPeer& peer, const std::string& folder, const DataBenchPlan& plan) {
  const ImageOptions options;
  const int64_t count = std::min(kCheckedPictures, plan.num_pictures);
  Loader loader(open_image_folder(folder, options), {.num_workers = plan.num_workers});
  std::vector<int64_t> indices(static_cast<size_t>(count));
  std::iota(indices.begin(), indices.end(), int64_t{0});
  loader.start(indices, count, 0, 0);
  const auto batch = loader.next();
  LOCKSTEP_CHECK(batch && batch->input.size(0) == count, "{} pictures were asked for", count);
  const auto* ours = batch->input.const_data_ptr<float>();
  const std::vector<float> theirs = peer.pixels(count, batch->input.numel());
  const int64_t plane = options.size * options.size;
  double largest = 0;
  for (int64_t picture = 0; picture < count; ++picture) {
    double sum = 0;
    for (int64_t i = picture * 3 * plane; i < (picture + 1) * 3 * plane; ++i) {
      const double steps = 255.0 * options.std[static_cast<size_t>(i / plane % 3)];
      sum += std::abs(ours[i] - theirs[static_cast<size_t>(i)]) * steps;
    }
    const double mean = sum / static_cast<double>(3 * plane);
    if (!(mean <= kMaxPixelDifference)) {  // a NaN too
      throw InternalError(
          "picture {} differs from the peer's by {:.2f} steps of 1/255 on average; at most {} is "
          "rounding",
          picture, mean, kMaxPixelDifference);
    }
    largest = std::max(largest, mean);
  }
  return largest;
}

DataBenchResult measure(const DataBenchPlan& plan) {
  const BenchFolder folder(plan.folder);
  DataBenchResult result;
  result.picture_bytes = write_bench_pictures(folder.at("pictures"), plan.num_pictures);
  write_bench_tokens(folder.at("tokens.bin"), plan.token_megabytes);
  const LoaderOptions options{.num_workers = plan.num_workers};
  Loader pictures(open_image_folder(folder.at("pictures"), {.augment = true}), options);
  Loader tokens(open_tokens({folder.at("tokens.bin")},
                            {.sequence_length = kBenchSequence, .vocab_size = kVocabulary}),
                options);
  result.token_bytes = tokens.dataset().size() * kBenchSequence * 2;
  DataPeer peer(plan, folder.at("pictures"));
  if (peer.is_present()) {
    result.pixel_difference = compare_pixels(peer, folder.at("pictures"), plan);
  }
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

}  // namespace

int bench_data_command(const std::string& text) {
  const auto plan = read_plan<DataBenchPlan>(text, "lockstep bench data");
  const DataBenchResult result = measure(plan);
  print_now(plan.json ? data_bench_json(plan, result) : data_bench_table(plan, result));
  return 0;
}

}  // namespace lockstep
