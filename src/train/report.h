#pragma once

// What `lockstep train` says about a run, as text; the program prints it.

#include <string>
#include <vector>

#include <lockstep/train/trainer.h>

namespace lockstep::train {

// Who a rank is and what it got to do.
struct RankStart {
  int rank = 0;
  int num_ranks = 1;
  int64_t node = 0;
  int64_t pid = 0;
  int64_t rank_samples = 0;  // that this rank trains on in each epoch
  int64_t num_samples = 0;   // that all ranks train on
  std::string samples = "samples";
  int threads = 1;
  at::Device device = at::kCPU;
};

// What is known of a run at its end.
struct RunReport {
  std::string recipe;       // its name
  std::string recipe_path;  // as the user typed it
  std::string program = "lockstep";
  std::string samples = "samples";
  int64_t num_parameters = 0;
  std::vector<int64_t> nodes;  // of each rank
  TrainResult result;

  int num_ranks() const { return static_cast<int>(nodes.size()); }
  int num_nodes() const;
};

// One line each, without a newline.
std::string start_line(const RankStart& start);
std::string step_line(const StepReport& report, const std::string& samples);
std::string save_line(const SaveResult& save);

// Returns how well it went, the table of hashes with its verdict, the time, and commands to go on
// with, without the last newline.
std::string result_text(const RunReport& report);

// The same as one JSON object on one line.
std::string result_json(const RunReport& report);

}  // namespace lockstep::train
