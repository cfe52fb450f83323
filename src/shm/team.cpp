#include "shm/team.h"

#include <algorithm>
#include <cstring>

#include <lockstep/base/error.h>

#include "base/cores.h"
#include "shm/placement.h"
#include "shm/team_detail.h"

namespace lockstep::shm {
namespace {

constexpr size_t kSpreadBytes = 512 << 10;  // from here on an uneven load costs more than to move

std::atomic<StateHook> state_hook{nullptr};

}  // namespace

void set_state_hook(StateHook hook) {
  state_hook.store(hook);
}

void at_state(State state) {
  if (const StateHook hook = state_hook.load(std::memory_order_relaxed)) [[unlikely]] {
    hook(state);
  }
}

size_t payload_bytes(const Task& task) {
  return task.count * element_bytes(task.type);
}

Team::Team(int rank, std::vector<std::byte*> arenas)
    : rank_(rank),
      size_(static_cast<int>(arenas.size())),
      arenas_(std::move(arenas)),
      layout_(size_),
      protocol_(*reinterpret_cast<Words<Platform>*>(arenas_[0]), size_,
                WaitPolicy::for_ranks(size_, num_usable_cores())),
      usable_cores_(usable_cores()),
      num_cores_(num_usable_cores()) {
  LOCKSTEP_CHECK(size_ <= kMaxRanks, "shm: {} ranks on one host; up to {} are supported", size_,
                 kMaxRanks);
  // Published, as an announcement is, by this rank's arrival at the first operation.
  const CoreBits mine = usable_core_bits();
  std::memcpy(arenas_[static_cast<size_t>(rank_)] + layout_.cores, &mine, sizeof mine);
}

void Team::count_cores() {
  CoreBits all;
  for (const std::byte* arena : arenas_) {
    CoreBits bits;
    std::memcpy(&bits, arena + layout_.cores, sizeof bits);
    all |= bits;
  }
  num_cores_ = std::max(1, static_cast<int>(all.count()));
  protocol_.set_policy(WaitPolicy::for_ranks(size_, num_cores_));
}

void Team::bind(Binding binding) {
  const uint32_t buffer = next_buffer_++;
  buffer_at_[binding.own] = buffer;
  bindings_[buffer] = std::move(binding);
}

void Team::sweep() {
  for (auto entry = bindings_.begin(); entry != bindings_.end();) {
    Binding& binding = entry->second;
    bool is_used = !binding.owner.expired();
    for (size_t rank = 0; rank < binding.keep.size(); ++rank) {
      if (binding.keep[rank] && binding.keep[rank]->released()) {
        binding.keep[rank].reset();
        binding.addresses[rank] = nullptr;
      }
      is_used = is_used || binding.keep[rank];
    }
    if (binding.owner.expired()) {
      const auto at = buffer_at_.find(binding.own);
      if (at != buffer_at_.end() && at->second == entry->first) {
        buffer_at_.erase(at);
      }
    }
    entry = is_used ? std::next(entry) : bindings_.erase(entry);
  }
}

Location Team::locate(const void* data, size_t bytes) const {
  const auto* begin = static_cast<const std::byte*>(data);
  auto next = buffer_at_.upper_bound(begin);
  if (next == buffer_at_.begin()) {
    return {};
  }
  const auto& [own, buffer] = *std::prev(next);
  const Binding& binding = bindings_.at(buffer);
  const auto offset = static_cast<size_t>(begin - own);
  if (offset > binding.bytes || bytes > binding.bytes - offset || binding.owner.expired()) {
    return {};
  }
  return {.buffer = buffer, .offset = offset};
}

std::vector<SharedPart> Team::parts_of(const void* data, size_t bytes) const {
  const Location location = locate(data, bytes);
  std::vector<SharedPart> parts;
  if (location.buffer != 0) {
    const Binding& binding = bindings_.at(location.buffer);
    for (size_t rank = 0; rank < binding.addresses.size(); ++rank) {
      parts.push_back({binding.addresses[rank] + location.offset, binding.keep[rank]});
    }
  }
  return parts;
}

void Team::run(const Task& task) {
  meet(task);
  at_state(State::Enter);
  switch (task.kind) {
    case Kind::AllReduce:
      all_reduce(task);
      break;
    case Kind::ReduceScatter:
      reduce_scatter(task);
      break;
    case Kind::Broadcast:
    case Kind::AllGather:
    case Kind::AllToAll:
      move(task);
      break;
    case Kind::Barrier:
    case Kind::Bind:
      break;
  }
  at_state(State::Leave);
}

void Team::meet(const Task& task, Alone alone) {
  stop_if_interrupted();
  ++round_;
  at_state(State::Announce);
  announce(task);
  at_state(State::Arrive);
  if (protocol_.arrive(round_)) {
    at_state(State::Alone);
    begin_alone(task, alone);
    protocol_.open(round_);
  } else {
    await_gate(task.deadline);
  }
  if (round_ == 1) {
    count_cores();
  }
  if (payload_bytes(task) >= kSpreadBytes) {
    spread_ranks();
  }
}

void Team::spread_ranks() const {
  if (size_ <= num_cores_) {
    return;
  }
  std::vector<int> cores;
  for (int rank = 0; rank < size_; ++rank) {
    cores.push_back(announcement(rank).core);
  }
  if (const auto core = better_core(cores, rank_, usable_cores_)) {
    move_to_core(*core);
  }
}

void Team::announce(const Task& task) {
  std::byte* const arena = arenas_[static_cast<size_t>(rank_)];
  const size_t parity = round_ % 2;
  Announcement& mine = reinterpret_cast<Announcement*>(arena + layout_.announcements)[parity];
  mine.call = task.part_of.value_or(CallId{.kind = task.kind,
                                           .type = task.type,
                                           .reduction = task.reduction,
                                           .root = task.root,
                                           .count = task.count,
                                           .sequence = task.sequence});
  if (task.kind == Kind::AllToAll) {
    auto* splits =
        reinterpret_cast<uint64_t*>(arena + layout_.splits + parity * layout_.splits_bytes);
    for (const int64_t elements : task.input_splits) {
      *splits++ = static_cast<uint64_t>(elements);
    }
  }
  const size_t bytes = own_input_bytes(task, rank_, size_);
  const bool small = is_small(task, size_);
  // Small inputs that are only read go through the slot even if they are bound: nobody waits at the
  // end for those who still read, and the slot stays as it is while the caller changes its buffer.
  const bool in_place = !small || task.kind == Kind::AllReduce;
  mine.location = in_place ? locate(task.input, bytes) : Location{};
  mine.core = current_core();
  mine.joined = false;
  if (mine.location.buffer == 0 && bytes > 0 && small) {
    mine.joined = join(task);
    if (!mine.joined) {
      std::memcpy(slot(rank_), task.input, bytes);
      status(rank_).staged.store(round_);
    }
  }
  // Relaxed: read only by ranks that have nothing better to do, through departed's release.
  status(rank_).entered.store(round_, std::memory_order_relaxed);
}

// Ranks 2i and 2i + 1 are siblings in the tree. Whoever of them comes second, and finds the other's
// input in its slot, adds its own to it right there instead of filling a slot: where ranks share a
// core that slot is still in the cache, and the reduction has half as many inputs. The other rank
// does not touch its slot any more: it waits for the gate, which does not open before this rank has
// come. Nobody waits for a sibling; if both come at once, both fill their slots.
bool Team::join(const Task& task) const {
  const int sibling = sibling_of(rank_);
  // Sums of 16 bits are rounded once, at the end; the slot would round them before.
  if (task.kind != Kind::AllReduce || is_tiny(task, size_) || is_half(task.type) ||
      sibling >= size_ || status(sibling).staged.load() != round_ ||
      !announcement(sibling).call.agrees_with(announcement(rank_).call)) {
    return false;
  }
  void* const sum = slot(sibling);
  const void* const inputs[] = {sibling < rank_ ? sum : task.input,
                                sibling < rank_ ? task.input : sum};
  at_state(State::Join);
  reduce_siblings(task, inputs, sum, task.count);
  return true;
}

void Team::begin_alone(const Task& task, Alone alone) {
  compare_announcements();
  Words<Platform>& words = protocol_.words();
  // Relaxed: no other rank looks at these until open(), which publishes them.
  constexpr auto kRelaxed = std::memory_order_relaxed;
  if (alone == Alone::Reduce && task.kind == Kind::AllReduce && is_tiny(task, size_)) {
    reduce_alone(task);
    return;
  }
  words.claimed.value.store(0, kRelaxed);
  words.completed.value.store(0, kRelaxed);
  words.finished.value.store(0, kRelaxed);
  if (!is_small(task, size_)) {
    for (int slot = 0; slot < kNumChunkSlots; ++slot) {
      words.staged[slot].value.store(0, kRelaxed);
      words.reduced[slot].value.store(0, kRelaxed);
    }
  }
}

void Team::compare_announcements() const {
  for (int rank = 1; rank < size_; ++rank) {
    if (!announcement(rank).call.agrees_with(announcement(0).call)) {
      throw Disagreement{rank, announcement(rank).call, announcement(0).call};
    }
  }
}

RankStatus& Team::status(int rank) const {
  return *reinterpret_cast<RankStatus*>(arenas_[static_cast<size_t>(rank)] + layout_.status);
}

// Some rank has left. That is of no matter if it had come to this operation before.
void Team::find_departed() const {
  for (int rank = 0; rank < size_; ++rank) {
    if (status(rank).departed.load() != 0 && status(rank).entered.load() < round_) {
      throw Departed{rank};
    }
  }
}

void Team::await_gate(Deadline deadline) {
  protocol_.await_gate(round_, deadline, [this] { find_departed(); });
}

void Team::await(Counter& counter, uint64_t target, Deadline deadline) {
  protocol_.await(counter, target, deadline, [this] { find_departed(); });
}

void Team::finish(const Task& task) {
  Counter& finished = protocol_.words().finished;
  at_state(State::Signal);
  signal(finished, static_cast<uint64_t>(size_));
  await(finished, static_cast<uint64_t>(size_), task.deadline);
}

void Team::stop_if_interrupted() const {
  if (protocol_.interrupted()) {
    throw Stopped{Stopped::Why::Interrupted};
  }
}

void Team::depart() {
  status(rank_).departed.store(1);
  protocol_.depart();
}

const Announcement& Team::announcement(int rank) const {
  return reinterpret_cast<const Announcement*>(arenas_[static_cast<size_t>(rank)] +
                                               layout_.announcements)[round_ % 2];
}

bool Team::all_bound() const {
  for (int rank = 0; rank < size_; ++rank) {
    if (announcement(rank).location.buffer == 0) {
      return false;
    }
  }
  return true;
}

std::byte* Team::shared_input(int rank) const {
  const Location where = announcement(rank).location;
  const auto place = static_cast<size_t>(rank);
  if (where.buffer == 0) {
    return slot(announcement(rank).joined ? sibling_of(rank) : rank);
  }
  const auto binding = bindings_.find(where.buffer);
  LOCKSTEP_CHECK(binding != bindings_.end() && binding->second.addresses[place] != nullptr,
                 "shm: rank {} uses buffer {}, which this rank does not map", rank, where.buffer);
  return binding->second.addresses[place] + where.offset;
}

std::byte* Team::slot(int rank) const {
  return arenas_[static_cast<size_t>(rank)] + layout_.slots + round_ % 2 * kSlotBytes;
}

std::byte* Team::chunk_slot(int rank, size_t chunk) const {
  return slot(rank) + chunk % kNumChunkSlots * kChunkBytes;
}

}  // namespace lockstep::shm
