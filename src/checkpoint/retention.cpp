#include "checkpoint/retention.h"

#include <algorithm>
#include <set>

namespace lockstep {

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

std::vector<std::string> superfluous(std::vector<KeptCheckpoint> checkpoints,
                                     const RetentionRules& rules) {
  std::sort(
      checkpoints.begin(), checkpoints.end(),
      [](const KeptCheckpoint& a, const KeptCheckpoint& b) { return a.sequence < b.sequence; });
  std::set<std::string> kept;
  const auto num_last = std::min<size_t>(static_cast<size_t>(rules.keep_last), checkpoints.size());
  for (size_t i = checkpoints.size() - num_last; i < checkpoints.size(); ++i) {
    kept.insert(checkpoints[i].name);
  }
  const KeptCheckpoint* best = best_of(checkpoints);
  if (rules.keep_best && best != nullptr) {
    kept.insert(best->name);
  }
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

}  // namespace lockstep
