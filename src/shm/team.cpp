#include "shm/team.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include <lockstep/base/error.h>

#include "base/process/cores.h"
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

Team::Team(int rank, std::vector<std::byte*> arenas, std::optional<int> num_cores)
    : rank_(rank),
      size_(static_cast<int>(arenas.size())),
      arenas_(std::move(arenas)),
      layout_(size_),
      protocol_(*reinterpret_cast<Words<Platform>*>(arenas_[0]), size_,
                WaitPolicy::for_ranks(size_, base::num_usable_cores())),
      usable_cores_(base::usable_cores()),
      counts_cores_(!num_cores),
      num_cores_(num_cores.value_or(base::num_usable_cores())),
      tactics_(Tactics::for_ranks(size_, num_cores.value_or(0))) {
  LOCKSTEP_CHECK(size_ <= kMaxRanks, "shm: {} ranks on one host; up to {} are supported", size_,
                 kMaxRanks);
  publish_cores();
}

void Team::publish_cores() const {
  status(rank_).quota = base::cpu_quota();
  for (const int core : usable_cores_) {
    if (core < kMaxCores) {
      status(rank_).cores[core / 64] |= uint64_t{1} << core % 64;
    }
  }
}

// Ranks that are bound may have one core each, and yet enough together; a quota may leave less.
void Team::count_cores() {
  int num_cores = 0;
  for (int word = 0; word < kMaxCores / 64; ++word) {
    uint64_t together = 0;
    for (int rank = 0; rank < size_; ++rank) {
      together |= status(rank).cores[word];
    }
    num_cores += std::popcount(together);
  }
  std::vector<base::CpuQuota> quotas;
  for (int rank = 0; rank < size_; ++rank) {
    quotas.push_back(status(rank).quota);
  }
  num_cores_ = base::cores_within(num_cores, quotas);
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
  if (round_ == 1 && counts_cores_) {  // with the second operation: all ranks change at once
    tactics_ = Tactics::for_ranks(size_, num_cores_);
    protocol_.set_policy(WaitPolicy::for_ranks(size_, num_cores_));
  }
  ++round_;
  at_state(State::Announce);
  announce(task, alone);
  at_state(State::Arrive);
  if (tactics_.has_own_cores) {
    pass_marks(task);
  } else {
    pass_gate(task, alone);
  }
  if (round_ == 1 && counts_cores_) {
    count_cores();
  }
  if (payload_bytes(task) >= kSpreadBytes) {
    spread_ranks();
  }
}

void Team::pass_gate(const Task& task, Alone alone) {
  if (protocol_.arrive(round_)) {
    at_state(State::Alone);
    begin_alone(task, alone);
    protocol_.open(round_);
  } else {
    await_gate(task.deadline);
  }
}

void Team::pass_marks(const Task& task) {
  protocol_.show(own_announcement().shown, round_);
  const auto all_there = [this] {
    bool all = true;  // looks at every rank each time: the lines are fetched at once, not in turn
    for (int rank = 0; rank < size_; ++rank) {
      all &= announcement(rank).shown.load() == round_;
    }
    return all;
  };
  protocol_.await_marks(all_there, task.deadline, [this] { find_departed(); });
  compare_announcements();
}

uint64_t Team::mark_of(size_t chunk) const {
  constexpr int kChunkBits = 26;  // 4 GiB in pieces of one line; the operations have 38
  return (round_ << kChunkBits) + chunk + 1;
}

uint64_t Team::target_of(size_t chunk) const {
  return static_cast<uint64_t>(size_) * (chunk / kNumChunkSlots + 1);
}

Team::Counter& Team::counter_of(Phase phase, size_t chunk) {
  Words<Platform>& words = protocol_.words();
  switch (phase) {
    case Phase::Staged:
      return words.staged[chunk % kNumChunkSlots];
    case Phase::Reduced:
      return words.reduced[chunk % kNumChunkSlots];
    case Phase::Done:
      break;
  }
  return words.finished;
}

void Team::pass(Phase phase, size_t chunk) {
  if (tactics_.has_own_cores) {
    protocol_.show(status(rank_).marks[static_cast<size_t>(phase)].value, mark_of(chunk));
  } else {
    signal(counter_of(phase, chunk), target_of(chunk));
  }
}

void Team::await_all(Phase phase, size_t chunk, base::Deadline deadline) {
  if (!tactics_.has_own_cores) {
    await(counter_of(phase, chunk), target_of(chunk), deadline);
    return;
  }
  const auto all_there = [&, mark = mark_of(chunk)] {
    bool all = true;
    for (int rank = 0; rank < size_; ++rank) {
      all &= status(rank).marks[static_cast<size_t>(phase)].value.load() >= mark;
    }
    return all;
  };
  protocol_.await_marks(all_there, deadline, [this] { find_departed(); });
}

void Team::spread_ranks() const {
  if (tactics_.has_own_cores || size_ <= num_cores_) {
    return;
  }
  std::vector<int> cores;
  for (int rank = 0; rank < size_; ++rank) {
    cores.push_back(announcement(rank).core);
  }
  if (const auto core = better_core(cores, rank_, usable_cores_)) {
    base::move_to_core(*core);
  }
}

void Team::announce(const Task& task, Alone alone) {
  std::byte* const arena = arenas_[static_cast<size_t>(rank_)];
  const size_t parity = round_ % 2;
  Announcement& mine = own_announcement();
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
  const bool small = is_small(task);
  // Small inputs that are only read go through the slot even if they are bound: nobody waits at the
  // end for those who still read, and the slot stays as it is while the caller changes its buffer.
  const bool reads_only = task.kind != Kind::AllReduce || (alone == Alone::Reduce && is_flat(task));
  const bool in_place = !small || !reads_only;
  mine.location = in_place ? locate(task.input, bytes) : Location{};
  mine.core = base::current_core();
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
  if (task.kind != Kind::AllReduce || tactics_.has_own_cores || is_for_one(task) ||
      is_half(task.type) || sibling >= size_ || status(sibling).staged.load() != round_ ||
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
  if (alone == Alone::Reduce && task.kind == Kind::AllReduce && is_for_one(task)) {
    reduce_alone(task);
    return;
  }
  words.claimed.value.store(0, kRelaxed);
  words.completed.value.store(0, kRelaxed);
  words.finished.value.store(0, kRelaxed);
  if (!is_small(task)) {
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

void Team::await_gate(base::Deadline deadline) {
  protocol_.await_gate(round_, deadline, [this] { find_departed(); });
}

void Team::await(Counter& counter, uint64_t target, base::Deadline deadline) {
  protocol_.await(counter, target, deadline, [this] { find_departed(); });
}

void Team::finish(const Task& task) {
  at_state(State::Signal);
  pass(Phase::Done);
  await_all(Phase::Done, 0, task.deadline);
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

Announcement& Team::own_announcement() const {
  return reinterpret_cast<Announcement*>(arenas_[static_cast<size_t>(rank_)] +
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
