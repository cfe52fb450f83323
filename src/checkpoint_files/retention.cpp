#include "checkpoint_files/retention.h"

#include <algorithm>
#include <set>

namespace lockstep::checkpoint_files {

namespace {

void sort_by_sequence(std::vector<KeptCheckpoint>& checkpoints) {
  std::sort(
      checkpoints.begin(), checkpoints.end(),
      [](const KeptCheckpoint& a, const KeptCheckpoint& b) { return a.sequence < b.sequence; });
}

}  // namespace

const KeptCheckpoint* best_of(const std::vector<KeptCheckpoint>& checkpoints) {
  const KeptCheckpoint* best = nullptr;
  for (const KeptCheckpoint& checkpoint : checkpoints) {
    if (!checkpoint.score) {
      continue;
    }
    if (best == nullptr || std::pair(*checkpoint.score, checkpoint.sequence) >
                               std::pair(*best->score, best->sequence)) {
      best = &checkpoint;
    }
  }
  return best;
}

std::vector<std::string> relied_on(std::vector<KeptCheckpoint> checkpoints,
                                   const RetentionRules& rules) {
  sort_by_sequence(checkpoints);
  std::vector<std::string> names;
  const auto num_last = std::min<size_t>(static_cast<size_t>(rules.keep_last), checkpoints.size());
  for (size_t i = checkpoints.size() - num_last; i < checkpoints.size(); ++i) {
    names.push_back(checkpoints[i].name);
  }
  const KeptCheckpoint* best = best_of(checkpoints);
  if (rules.keep_best && best != nullptr) {
    names.push_back(best->name);
  }
  return names;
}

std::vector<std::string> superfluous(std::vector<KeptCheckpoint> checkpoints,
                                     const RetentionRules& rules) {
  sort_by_sequence(checkpoints);
  const std::vector<std::string> relied = relied_on(checkpoints, rules);
  std::set<std::string> kept(relied.begin(), relied.end());
  if (rules.keep_every.count() > 0) {
    std::optional<int64_t> last_s;
    for (const KeptCheckpoint& checkpoint : checkpoints) {
      if (!last_s || checkpoint.created_s - *last_s >= rules.keep_every.count()) {
        kept.insert(checkpoint.name);
        last_s = checkpoint.created_s;
      }
    }
  }
  std::vector<std::string> names;
  for (const KeptCheckpoint& checkpoint : checkpoints) {
    if (!kept.contains(checkpoint.name)) {
      names.push_back(checkpoint.name);
    }
  }
  return names;
}

}  // namespace lockstep::checkpoint_files
