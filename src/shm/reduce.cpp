// The reductions of a team. Bytes that cross the memory bus, per rank, with S bytes of data: in
// place 2 S (every block is read once and written once); through the slots about 5 S, less where
// siblings join, of chunks most in the cache.

#include <algorithm>
#include <cstring>

#include <lockstep/base/error.h>

#include "base/round.h"
#include "shm/team_detail.h"

namespace lockstep::shm {
namespace {

constexpr size_t kAlignBytes = 64;  // no two ranks write to one cache line
static_assert(kMaxRanks * kAlignBytes <= kChunkBytes);
constexpr size_t kMinBlockBytes = 4 << 10;  // of a claimed block
constexpr size_t kPassBytes = 1 << 20;      // between two looks at whether to stop

// Elements [begin, end).
struct Range {
  size_t begin = 0;
  size_t end = 0;
  size_t size() const { return end - begin; }
};

// Part `index` of `count` elements cut into `num_parts` of nearly equal, aligned size.
Range part_of(size_t count, size_t element, size_t num_parts, size_t index) {
  const size_t unit = kAlignBytes / element;
  const size_t part = base::rounded_up((count + num_parts - 1) / num_parts, unit);
  return {std::min(index * part, count), std::min((index + 1) * part, count)};
}

ReduceKernel kernel_for(const Task& task) {
  return find_kernel({.from = task.type, .to = task.type, .reduction = task.reduction});
}

}  // namespace

void reduce_siblings(const Task& task, const void* const* pair, void* sum, size_t count) {
  find_kernel({.from = task.type, .to = task.type, .reduction = undivided(task.reduction)})(
      {.sources = pair,
       .num_sources = 2,
       .destinations = &sum,
       .num_destinations = 1,
       .count = count});
}

void Team::gather_inputs() {
  inputs_.resize(static_cast<size_t>(size_));
  pointers_.resize(static_cast<size_t>(size_));
  for (int rank = 0; rank < size_; ++rank) {
    inputs_[static_cast<size_t>(rank)] = shared_input(rank);
  }
}

void* const* Team::inputs_at(size_t offset_bytes) {
  for (size_t rank = 0; rank < inputs_.size(); ++rank) {
    pointers_[rank] = inputs_[rank] + offset_bytes;
  }
  return pointers_.data();
}

int Team::divisor(const Task& task) const {
  return task.divisor != 0 ? task.divisor : size_;
}

bool Team::is_for_one(const Task& task) const {
  return payload_bytes(task) * static_cast<size_t>(size_) <= tactics_.alone_bytes;
}

bool Team::is_flat(const Task& task) const {
  return tactics_.has_own_cores && payload_bytes(task) <= tactics_.flat_bytes;
}

void Team::all_reduce(const Task& task) {
  const size_t bytes = payload_bytes(task);
  const bool small = is_small(task);
  if (is_flat(task)) {
    reduce_flat(task);
    return;
  }
  if (is_for_one(task)) {
    // The last rank has done it already.
  } else if ((small || all_bound()) && bytes * static_cast<size_t>(size_) <= tactics_.slice_bytes) {
    reduce_slice(task);
  } else if (small || all_bound()) {
    reduce_claimed(task);
  } else {
    reduce_pipelined(task);
  }
  if (small && announcement(rank_).location.buffer == 0 && bytes > 0) {
    std::memcpy(task.output, shared_input(rank_), bytes);
  }
}

// In place: every rank's elements are replaced by the result. Where siblings have joined, their
// level of the tree is done for them, and is done here for the others.
void Team::reduce_range(const Task& task, void* const* data, size_t count) {
  const auto has_joined = [data](int rank) {
    return rank % 2 == 1 && data[rank] == data[rank - 1];
  };
  outputs_.clear();
  for (int rank = 0; rank < size_; ++rank) {
    if (!has_joined(rank)) {
      outputs_.push_back(data[rank]);
    }
  }
  leaves_ = outputs_;
  if (static_cast<int>(outputs_.size()) < size_) {
    leaves_.clear();
    for (int rank = 0; rank < size_; rank += 2) {
      if (rank + 1 < size_ && !has_joined(rank + 1)) {
        reduce_siblings(task, data + rank, data[rank], count);
      }
      leaves_.push_back(data[rank]);
    }
  }
  kernel_for(task)({.sources = leaves_.data(),
                    .num_sources = static_cast<int>(leaves_.size()),
                    .destinations = outputs_.data(),
                    .num_destinations = static_cast<int>(outputs_.size()),
                    .count = count,
                    .divisor = divisor(task)});
}

void Team::reduce_alone(const Task& task) {
  if (task.count > 0) {
    gather_inputs();
    reduce_range(task, inputs_at(0), task.count);
  }
}

// The ranks synchronise once, not twice: the slots are not written again before all ranks have
// come to the next operation.
void Team::reduce_flat(const Task& task) {
  if (task.count == 0) {
    return;
  }
  gather_inputs();
  inputs_[static_cast<size_t>(rank_)] =
      const_cast<std::byte*>(static_cast<const std::byte*>(task.input));
  at_state(State::Work);
  kernel_for(task)({.sources = inputs_at(0),
                    .num_sources = size_,
                    .destinations = &task.output,
                    .num_destinations = 1,
                    .count = task.count,
                    .divisor = divisor(task)});
}

// Every rank is awake, and all are as quick: one slice for each needs no claims.
void Team::reduce_slice(const Task& task) {
  const size_t element = element_bytes(task.type);
  const Range slice =
      part_of(task.count, element, static_cast<size_t>(size_), static_cast<size_t>(rank_));
  gather_inputs();
  at_state(State::Work);
  if (slice.size() > 0) {
    reduce_range(task, inputs_at(slice.begin * element), slice.size());
  }
  finish(task);
}

// The next block of this operation; one too many when there is no more.
size_t Team::claim() {
  Words<Platform>& words = protocol_.words();
  return tactics_.has_own_cores ? words.taken.value.fetch_add(1) - num_taken_
                                : words.claimed.value.fetch_add(1);
}

// Whoever is awake takes the next block: a rank that waits for a core holds nobody up, and a core
// that runs few ranks does the work of one that runs many. From the end, which was written last and
// may still be in a cache.
void Team::reduce_claimed(const Task& task) {
  const size_t element = element_bytes(task.type);
  const size_t bytes = payload_bytes(task);
  const size_t even_share = bytes / static_cast<size_t>(size_) / tactics_.blocks_per_rank;
  const size_t block_bytes = std::clamp(even_share, kMinBlockBytes, tactics_.max_block_bytes);
  const size_t num_blocks = std::max<size_t>(1, bytes / block_bytes);
  gather_inputs();
  Counter& completed = protocol_.words().completed;
  while (true) {
    at_state(State::Work);
    stop_if_interrupted();
    const size_t block = claim();
    if (block >= num_blocks) {
      break;
    }
    const Range range = part_of(task.count, element, num_blocks, num_blocks - 1 - block);
    reduce_range(task, inputs_at(range.begin * element), range.size());
    if (!tactics_.has_own_cores) {
      at_state(State::Signal);
      signal(completed, num_blocks);
    }
  }
  if (tactics_.has_own_cores) {
    num_taken_ += num_blocks + static_cast<uint64_t>(size_);  // each rank's last claim failed
    finish(task);
  } else {
    await(completed, num_blocks, task.deadline);
  }
}

void Team::reduce_scatter(const Task& task) {
  if (!is_small(task) && !all_bound()) {
    reduce_pipelined(task);
    return;
  }
  const size_t element = element_bytes(task.type);
  gather_inputs();
  const size_t first = static_cast<size_t>(rank_) * task.count;
  const size_t pass = kPassBytes / element;
  for (size_t begin = 0; begin < task.count; begin += pass) {
    at_state(State::Work);
    stop_if_interrupted();
    void* output = static_cast<std::byte*>(task.output) + begin * element;
    kernel_for(task)({.sources = inputs_at((first + begin) * element),
                      .num_sources = size_,
                      .destinations = &output,
                      .num_destinations = 1,
                      .count = std::min(pass, task.count - begin),
                      .divisor = divisor(task)});
  }
  if (!is_small(task)) {
    finish(task);  // the others read this rank's buffer; a small slot is not written until then
  }
}

// How AllReduce and ReduceScatter of ordinary memory are cut: chunk c has a piece for each rank,
// its owner, who reduces it. A rank copies the pieces of the others into its slot, one after the
// other.
class PieceMap {
 public:
  PieceMap(const Task& task, int size, size_t chunk_bytes)
      : num_ranks_(static_cast<size_t>(size)),
        element_(element_bytes(task.type)),
        count_(task.count),
        scatters_(task.kind == Kind::ReduceScatter),
        // Aligned down, and at least one line (kMaxRanks).
        piece_(chunk_bytes / num_ranks_ / kAlignBytes * kAlignBytes / element_) {}

  size_t num_chunks() const {
    const size_t per_chunk = scatters_ ? piece_ : piece_ * num_ranks_;
    return (count_ + per_chunk - 1) / per_chunk;
  }

  // Which elements of a rank's input `owner` reduces in `chunk`.
  Range piece(size_t chunk, size_t owner) const {
    if (scatters_) {
      const size_t begin = std::min(chunk * piece_, count_);
      const size_t end = std::min(begin + piece_, count_);
      return {owner * count_ + begin, owner * count_ + end};
    }
    const size_t begin = chunk * piece_ * num_ranks_;
    const Range part =
        part_of(std::min(piece_ * num_ranks_, count_ - begin), element_, num_ranks_, owner);
    return {begin + part.begin, begin + part.end};
  }

  size_t slot_offset(size_t owner) const { return owner * piece_ * element_; }

 private:
  const size_t num_ranks_;
  const size_t element_;
  const size_t count_;
  const bool scatters_;
  const size_t piece_;  // elements, at most
};

// Where a rank leaves the sums of its piece of a chunk, if the others fetch them: after the chunks
// of its slot. It is written again three chunks later, after all ranks have staged that one, and so
// have copied this one out.
std::byte* Team::sum_slot(int rank, size_t chunk) const {
  return slot(rank) + (kNumChunkSlots * kChunkBytes) +
         chunk % kNumChunkSlots * (kSumBytes / kNumChunkSlots / kLineBytes * kLineBytes);
}

// Copies between this rank's memory and the slots, all pieces but its own.
void Team::copy_pieces(const PieceMap& map, size_t chunk, std::byte* memory, size_t element,
                       Direction direction) const {
  std::byte* const slot = chunk_slot(rank_, chunk);
  for (int step = 1; step < size_; ++step) {
    const int owner = (rank_ + step) % size_;  // not all at the lines of the same one at once
    const auto place = static_cast<size_t>(owner);
    const Range piece = map.piece(chunk, place);
    if (piece.size() == 0) {
      continue;
    }
    std::byte* const here = memory + piece.begin * element;
    std::byte* const there = slot + map.slot_offset(place);
    if (direction == Direction::In) {
      std::memcpy(there, here, piece.size() * element);
    } else {
      std::memcpy(here, tactics_.fetches_sums ? sum_slot(owner, chunk) : there,
                  piece.size() * element);
    }
  }
}

// Reduces this rank's piece of `chunk`. AllReduce among few ranks: the sum goes back into the lines
// that the peers' values were read from, which is much cheaper than a place of its own (those lines
// are here now). Among many, so many lines would have to change hands twice that a place of its own
// is cheaper.
void Team::reduce_piece(const Task& task, const PieceMap& map, size_t chunk) const {
  const size_t element = element_bytes(task.type);
  const auto self = static_cast<size_t>(rank_);
  const Range piece = map.piece(chunk, self);
  if (piece.size() == 0) {
    return;
  }
  std::vector<void*> sources;
  for (int rank = 0; rank < size_; ++rank) {
    sources.push_back(chunk_slot(rank, chunk) + map.slot_offset(self));
  }
  sources[self] =
      const_cast<std::byte*>(static_cast<const std::byte*>(task.input)) + piece.begin * element;
  std::vector<void*> destinations = sources;
  if (task.kind == Kind::ReduceScatter) {
    const size_t within = piece.begin - self * task.count;
    destinations = {static_cast<std::byte*>(task.output) + within * element};
  } else if (tactics_.fetches_sums) {
    destinations = {sources[self], sum_slot(rank_, chunk)};
  }
  kernel_for(task)({.sources = sources.data(),
                    .num_sources = size_,
                    .destinations = destinations.data(),
                    .num_destinations = static_cast<int>(destinations.size()),
                    .count = piece.size(),
                    .divisor = divisor(task)});
}

// Ordinary memory: while chunk c is copied in, c - 1 is reduced and c - 2 copied out. Three slots
// are enough: a rank fills slot c % 3 again only after it has seen that all are done with chunk c
// - 3.
void Team::reduce_pipelined(const Task& task) {
  const PieceMap map(task, size_, tactics_.chunk_bytes);
  const size_t num_chunks = map.num_chunks();
  const size_t element = element_bytes(task.type);
  auto* const input = const_cast<std::byte*>(static_cast<const std::byte*>(task.input));
  for (size_t step = 0; step < num_chunks + 2; ++step) {
    stop_if_interrupted();
    if (step < num_chunks) {
      at_state(State::Work);
      copy_pieces(map, step, input, element, Direction::In);
      at_state(State::Signal);
      pass(Phase::Staged, step);
    }
    if (step >= 1 && step - 1 < num_chunks) {
      const size_t chunk = step - 1;
      await_all(Phase::Staged, chunk, task.deadline);
      at_state(State::Work);
      reduce_piece(task, map, chunk);
      at_state(State::Signal);
      pass(Phase::Reduced, chunk);
    }
    if (step >= 2) {
      const size_t chunk = step - 2;
      await_all(Phase::Reduced, chunk, task.deadline);
      if (task.kind == Kind::AllReduce) {
        copy_pieces(map, chunk, static_cast<std::byte*>(task.output), element, Direction::Out);
      }
    }
  }
}

void Team::reduce_exchange(const Task& task, int num_slices, Exchange& exchange) {
  meet(task, Alone::Only);
  LOCKSTEP_CHECK(all_bound(), "shm: only bound buffers can be exchanged");
  at_state(State::Enter);
  if (rank_ < num_slices) {
    exchange_slice(task, num_slices, exchange);
  }
  finish(task);
  at_state(State::Leave);
}

void Team::exchange_slice(const Task& task, int num_slices, Exchange& exchange) {
  const size_t element = element_bytes(task.type);
  const DataType sum_type = accumulator_of(task.type, task.reduction);
  const size_t sum_element = element_bytes(sum_type);
  const Range whole =
      part_of(task.count, element, static_cast<size_t>(num_slices), static_cast<size_t>(rank_));
  gather_inputs();
  partial_.resize(whole.size() * sum_element);
  // An average is divided at the end, when all nodes are in.
  const Reduction inside = undivided(task.reduction);
  const auto reduce = [&](size_t begin, size_t count) {
    at_state(State::Work);
    void* partial = partial_.data() + begin * sum_element;
    find_kernel({.from = task.type, .to = sum_type, .reduction = inside})(
        {.sources = inputs_at((whole.begin + begin) * element),
         .num_sources = size_,
         .destinations = &partial,
         .num_destinations = 1,
         .count = count});
  };
  const auto write = [&](size_t begin, size_t count) {
    at_state(State::Work);
    // With one source every reduction is a copy, and Average divides as well.
    const void* source = partial_.data() + begin * sum_element;
    find_kernel({.from = sum_type, .to = task.type, .reduction = task.reduction})(
        {.sources = &source,
         .num_sources = 1,
         .destinations = inputs_at((whole.begin + begin) * element),
         .num_destinations = size_,
         .count = count,
         .divisor = divisor(task)});
  };
  exchange.exchange({partial_.data(), whole.size(), reduce, write});
}

}  // namespace lockstep::shm
