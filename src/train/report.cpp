#include "train/report.h"

#include <cmath>
#include <set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace lockstep::train {
namespace {

std::string hex(uint64_t hash) {
  return fmt::format("{:016x}", hash);
}

std::string count(int64_t n, const char* noun) {
  return fmt::format("{} {}{}", n, noun, n == 1 ? "" : "s");
}

const char* end_text(TrainEnd end) {
  switch (end) {
    case TrainEnd::Done:
      return "done";
    case TrainEnd::MaxTime:
      return "max_time";
    case TrainEnd::EarlyStop:
      return "early_stop";
    case TrainEnd::Asked:
      return "asked";
  }
  return "done";
}

std::string judged_text(const RunReport& report) {
  const auto& evaluation = report.result.evaluation;
  if (!evaluation) {
    return fmt::format("\nlast loss {:.4f}\n\n", report.result.last.loss);
  }
  if (evaluation->num_correct < 0) {
    return fmt::format("\nheld-out loss {:.4f}, perplexity {:.2f}, over {} tokens\n\n",
                       evaluation->loss, std::exp(evaluation->loss), evaluation->num_counted);
  }
  return fmt::format("\nheld-out accuracy {:.1f} %: {} of {} {} that no rank was trained on\n\n",
                     100 * evaluation->accuracy(), evaluation->num_correct, evaluation->num_counted,
                     report.samples);
}

std::string bits_text(const RunReport& report) {
  const TrainResult& result = report.result;
  std::string text =
      fmt::format("hash of all {} parameters on each rank:\n", report.num_parameters);
  for (size_t rank = 0; rank < result.parameter_hashes.size(); ++rank) {
    text += fmt::format("  rank {:<3} node {:<3} {}\n", rank, report.nodes[rank],
                        hex(result.parameter_hashes[rank]));
  }
  if (!result.same_bits()) {
    return text + "the ranks hold different models: this is a bug in lockstep, please report it\n";
  }
  if (report.num_ranks() == 1) {
    return text + "one rank: nothing to compare\n";
  }
  return text + fmt::format("all {} ranks hold the same bits\n", report.num_ranks());
}

std::string next_text(const RunReport& report) {
  if (report.recipe != "cats") {
    return "";
  }
  return fmt::format(
      "\nwhat to try next:\n"
      "  {0} explain average     # why gradients are averaged\n"
      "  {0} run --nproc-per-node 2 -- {0} train {1} --set data.shuffle_labels=true     # a "
      "control: near 50 %\n"
      "  make test     # everything that is claimed",
      report.program, report.recipe_path);
}

}  // namespace

int RunReport::num_nodes() const {
  return static_cast<int>(std::set<int64_t>(nodes.begin(), nodes.end()).size());
}

std::string start_line(const RankStart& start) {
  const std::string gpu = start.device.is_cpu() ? "" : ", " + start.device.str();
  return fmt::format("rank {} of {} on node {}, pid {}: trains on {} of {} {} per epoch, {}{}",
                     start.rank, start.num_ranks, start.node, start.pid, start.rank_samples,
                     start.num_samples, start.samples, count(start.threads, "thread"), gpu);
}

std::string step_line(const StepReport& report, const std::string& samples) {
  std::string line = fmt::format("step {:>4}/{}  epoch {:>2}  loss {:.4f}", report.step,
                                 report.num_steps, report.epoch + 1, report.loss);
  if (report.train_accuracy >= 0) {
    line += fmt::format("  training {:5.1f} %", 100 * report.train_accuracy);
  }
  if (report.evaluation && report.evaluation->num_correct >= 0) {
    line += fmt::format("  held out {:5.1f} %", 100 * report.evaluation->accuracy());
  } else if (report.evaluation) {
    line += fmt::format("  held out {:.4f}", report.evaluation->loss);
  }
  line += fmt::format("  lr {:.1e}  {:5.0f} {}/s  {:5.1f} s", report.lr, report.samples_per_s,
                      samples, report.seconds);
  if (report.num_bad_steps > 0) {
    line += fmt::format("  {} left out", count(report.num_bad_steps, "bad step"));
  }
  return line;
}

std::string save_line(const SaveResult& save) {
  return save.committed
             ? fmt::format("step {:>4}  checkpoint {} ({:.1f} MB, {:.2f} s)", save.step, save.path,
                           static_cast<double>(save.bytes) / 1e6, save.seconds)
             : fmt::format("step {:>4}  no checkpoint: {}", save.step, save.error);
}

std::string result_text(const RunReport& report) {
  const TrainResult& result = report.result;
  std::string text = judged_text(report) + bits_text(report);
  text += fmt::format("{} on {}, {} in {}, {:.1f} s\n", count(report.num_ranks(), "rank"),
                      count(report.num_nodes(), "node"), count(result.steps, "step"),
                      count(result.epochs, "epoch"), result.seconds);
  if (result.end == TrainEnd::Asked || result.end == TrainEnd::MaxTime) {
    text += "ended before its time; start it again to go on\n";
  } else if (result.end == TrainEnd::EarlyStop && !result.best) {
    text += "ended early: no evaluation gave a number\n";
  } else if (result.end == TrainEnd::EarlyStop) {
    text += fmt::format("ended early: no better since step {}\n", result.best->step);
  }
  text += next_text(report);
  text.erase(text.find_last_not_of('\n') + 1);
  return text;
}

std::string result_json(const RunReport& report) {
  const TrainResult& result = report.result;
  nlohmann::ordered_json json;
  json["recipe"] = report.recipe;
  json["ranks"] = report.num_ranks();
  json["nodes"] = report.num_nodes();
  json["steps"] = result.steps;
  json["epochs"] = result.epochs;
  json["end"] = end_text(result.end);
  json["resumed_at"] = result.resumed_at;
  json["seconds"] = result.seconds;
  json["threads"] = result.threads;
  json[report.samples + "_per_s"] = result.last.samples_per_s;
  json["loss"] = result.last.loss;
  if (result.last.train_accuracy >= 0) {
    json["train_accuracy"] = result.last.train_accuracy;
  }
  if (result.evaluation) {
    json["held_out_loss"] = result.evaluation->loss;
    if (result.evaluation->num_correct >= 0) {
      json["held_out_accuracy"] = result.evaluation->accuracy();
    }
    const bool counts_samples = result.evaluation->num_correct >= 0;
    json["held_out_" + (counts_samples ? report.samples : "tokens")] =
        result.evaluation->num_counted;
  }
  if (result.best) {
    json["best_step"] = result.best->step;
    json["best_held_out_loss"] = result.best->loss;
  }
  json["bad_steps"] = result.num_bad_steps;
  json["num_parameters"] = report.num_parameters;
  auto& hashes = json["parameter_hashes"] = nlohmann::ordered_json::array();
  for (const uint64_t hash : result.parameter_hashes) {
    hashes.push_back(hex(hash));
  }
  json["same_bits"] = result.same_bits();
  return json.dump();
}

}  // namespace lockstep::train
