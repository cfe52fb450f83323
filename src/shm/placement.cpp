#include "shm/placement.h"

#include <algorithm>
#include <vector>

namespace lockstep::shm {

std::optional<int> better_core(std::span<const int> cores_of_ranks, int rank,
                               std::span<const int> usable) {
  std::vector<int> num_ranks(usable.size(), 0);
  std::vector<size_t> place;  // of each rank, in usable
  for (const int core : cores_of_ranks) {
    const auto at = std::find(usable.begin(), usable.end(), core);
    if (at == usable.end()) {
      return std::nullopt;  // these ranks do not share the same cores
    }
    place.push_back(static_cast<size_t>(at - usable.begin()));
    ++num_ranks[place.back()];
  }
  // The last ranks of the fullest core move first, as long as that evens out.
  for (int mover = static_cast<int>(place.size()) - 1; mover >= rank; --mover) {
    const size_t from = place[static_cast<size_t>(mover)];
    const auto emptiest = std::min_element(num_ranks.begin(), num_ranks.end());
    if (num_ranks[from] < *emptiest + 2) {
      continue;
    }
    --num_ranks[from];
    ++*emptiest;
    if (mover == rank) {
      return usable[static_cast<size_t>(emptiest - num_ranks.begin())];
    }
  }
  return std::nullopt;
}

}  // namespace lockstep::shm
