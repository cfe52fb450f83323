#include "train/cats_report.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace lockstep {
namespace {

std::string hex(uint64_t hash) {
  return fmt::format("{:016x}", hash);
}

std::string count(int64_t n, const char* noun) {
  return fmt::format("{} {}{}", n, noun, n == 1 ? "" : "s");
}

std::string bits_text(const CatsResult& result) {
  std::string text =
      fmt::format("hash of all {} parameters on each rank:\n", result.num_parameters);
  for (size_t rank = 0; rank < result.parameter_hashes.size(); ++rank) {
    text += fmt::format("  rank {:<3} node {:<3} {}\n", rank, result.nodes[rank],
                        hex(result.parameter_hashes[rank]));
  }
  if (!result.same_bits()) {
    return text + "the ranks hold different models: this is a bug in lockstep, please report it\n";
  }
  if (result.num_ranks() == 1) {
    return text + "one rank: nothing to compare\n";
  }
  return text + fmt::format("all {} ranks hold the same bits\n", result.num_ranks());
}

}  // namespace

std::string start_line(const RankStart& start) {
  return fmt::format("rank {} of {} on node {}, pid {}: trains on {} of {} pictures per epoch",
                     start.rank, start.num_ranks, start.node, start.pid, start.rank_pictures,
                     start.num_pictures);
}

std::string epoch_line(const EpochReport& report) {
  return fmt::format(
      "epoch {:>2}/{}  loss {:.4f}  training {:5.1f} %  held out {:5.1f} %  {:5.0f} pictures/s  "
      "{:5.1f} s",
      report.epoch, report.num_epochs, report.loss, 100 * report.train_accuracy,
      100 * report.held_out_accuracy, report.pictures_per_s, report.seconds);
}

std::string result_text(const CatsResult& result, const CatsCommand& command) {
  std::string text = fmt::format(
      "\nheld-out accuracy {:.1f} %: {} of {} pictures that no rank was trained on\n\n",
      100 * result.last.held_out_accuracy, result.held_out_correct, result.held_out_pictures);
  text += bits_text(result);
  text += fmt::format("{} on {}, {}, {:.1f} s\n", count(result.num_ranks(), "rank"),
                      count(result.num_nodes(), "node"), count(result.last.num_epochs, "epoch"),
                      result.seconds);
  text += fmt::format(
      "\nwhat to try next:\n"
      "  {0} explain average     # why gradients are averaged\n"
      "  {0} run --nproc-per-node 2 -- {0} train {1} --set data.shuffle_labels=true     # a "
      "control: "
      "near 50 %\n"
      "  make test     # everything that is claimed",
      command.program, command.recipe);
  return text;
}

std::string result_json(const CatsResult& result) {
  nlohmann::ordered_json json;
  json["recipe"] = "cats";
  json["ranks"] = result.num_ranks();
  json["nodes"] = result.num_nodes();
  json["epochs"] = result.last.num_epochs;
  json["seconds"] = result.seconds;
  json["pictures_per_s"] = result.last.pictures_per_s;
  json["loss"] = result.last.loss;
  json["train_accuracy"] = result.last.train_accuracy;
  json["held_out_accuracy"] = result.last.held_out_accuracy;
  json["held_out_pictures"] = result.held_out_pictures;
  json["num_parameters"] = result.num_parameters;
  auto& hashes = json["parameter_hashes"] = nlohmann::ordered_json::array();
  for (const uint64_t hash : result.parameter_hashes) {
    hashes.push_back(hex(hash));
  }
  json["same_bits"] = result.same_bits();
  return json.dump();
}

}  // namespace lockstep
