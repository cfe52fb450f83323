#include "bench/data/bench_data_result.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "bench/figures.h"

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kDigits = 4;

}  // namespace

std::string data_bench_json(const DataBenchPlan& plan, const DataBenchResult& result) {
  const bool has_peer = !result.peer_s.empty();
  const auto count = static_cast<double>(plan.num_pictures);
  const auto of_peer = [&](double value) {
    return has_peer ? Json(rounded_to(kDigits, value)) : Json(nullptr);
  };
  const double peer_s = median(result.peer_s);
  const double pictures_s = median(result.pictures_s);
  const Json json{
      {"pictures", plan.num_pictures},
      {"picture_bytes", result.picture_bytes},
      {"token_bytes", result.token_bytes},
      {"workers", plan.num_workers},
      {"batch", plan.batch_size},
      {"repeats", plan.repeats},
      {"samples_per_s", rounded_to(kDigits, count / pictures_s)},
      {"peer", has_peer ? Json("torchvision") : Json(nullptr)},
      {"peer_samples_per_s", of_peer(count / peer_s)},
      {"speedup", of_peer(peer_s / pictures_s)},
      {"pixel_difference", result.pixel_difference
                               ? Json(rounded_to(kDigits, *result.pixel_difference))
                               : Json(nullptr)},
      {"token_gb_per_s", rounded_to(kDigits, static_cast<double>(result.token_bytes) / 1e9 /
                                                 median(result.tokens_s))},
      {"raw_s",
       {{"pictures", result.pictures_s}, {"peer", result.peer_s}, {"tokens", result.tokens_s}}}};
  return json.dump() + "\n";
}

std::string data_bench_table(const DataBenchPlan& plan, const DataBenchResult& result) {
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
                      kBenchSequence);
  return text;
}

}  // namespace lockstep
