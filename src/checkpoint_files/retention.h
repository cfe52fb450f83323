#pragma once

// Which checkpoints may go.

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::checkpoint_files {

struct KeptCheckpoint {
  std::string name;
  uint64_t sequence = 0;
  int64_t created_s = 0;
  std::optional<double> score;
  bool is_sound = true;  // false: nobody has looked at its bytes yet
};

struct RetentionRules {
  int64_t keep_last = 3;
  std::chrono::seconds keep_every{0};
  bool keep_best = true;
};

// The one with the highest score, of equal ones the newest; null if none has any.
const KeptCheckpoint* best_of(const std::vector<KeptCheckpoint>& checkpoints);

// Names of those for whose sake others may go: the last ones and the best.
std::vector<std::string> relied_on(std::vector<KeptCheckpoint> checkpoints,
                                   const RetentionRules& rules);

// Names of those that no rule keeps. keep_every keeps the first one, then each that is so much
// younger than the last that it kept.
std::vector<std::string> superfluous(std::vector<KeptCheckpoint> checkpoints,
                                     const RetentionRules& rules);

}  // namespace lockstep::checkpoint_files
