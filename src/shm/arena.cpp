#include "shm/arena.h"

#include "base/round.h"

namespace lockstep::shm {
namespace {

constexpr size_t kPageBytes = 4096;

}  // namespace

ArenaLayout::ArenaLayout(int size) {
  const auto num_ranks = static_cast<size_t>(size);
  size_t end = 0;
  const auto place = [&end](size_t item_bytes, size_t unit) {
    const size_t at = base::rounded_up(end, unit);
    end = at + item_bytes;
    return at;
  };
  place(sizeof(Words<Platform>), kLineBytes);
  announcements = place(2 * sizeof(Announcement), kLineBytes);
  status = place(sizeof(RankStatus), kLineBytes);
  splits_bytes = num_ranks * sizeof(uint64_t);
  splits = place(2 * splits_bytes, kLineBytes);
  slots = place(2 * kSlotBytes, kPageBytes);
  inbox_bytes = Mailbox::bytes_for(size);
  inboxes = place(num_ranks * inbox_bytes, kPageBytes);
  bytes = base::rounded_up(end, kPageBytes);
}

}  // namespace lockstep::shm
