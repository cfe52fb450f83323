// The operations that only move bytes: each rank takes what it needs from the others' inputs.

#include <algorithm>
#include <cstring>

#include "shm/team_detail.h"

namespace lockstep::shm {

size_t own_input_bytes(const Task& task, int rank, int size) {
  const size_t payload = payload_bytes(task);
  switch (task.kind) {
    case Kind::AllReduce:
    case Kind::AllGather:
      return payload;
    case Kind::Broadcast:
      return rank == task.root ? payload : 0;
    case Kind::ReduceScatter:
      return payload * static_cast<size_t>(size);
    case Kind::AllToAll: {
      int64_t elements = 0;
      for (const int64_t part : task.input_splits) {
        elements += part;
      }
      return static_cast<size_t>(elements) * element_bytes(task.type);
    }
    case Kind::Barrier:
    case Kind::Bind:
      break;
  }
  return 0;
}

bool Team::is_small(const Task& task) const {
  constexpr size_t kSmallBytes = 128 << 10;
  switch (task.kind) {
    case Kind::AllReduce:
      return payload_bytes(task) <= tactics_.small_bytes;
    case Kind::Broadcast:
    case Kind::AllGather:
      return payload_bytes(task) <= kSmallBytes;
    case Kind::ReduceScatter:
      return payload_bytes(task) * static_cast<size_t>(size_) <= kSmallBytes;
    case Kind::AllToAll:
      return false;  // ranks may give different amounts, and know only their own
    case Kind::Barrier:
    case Kind::Bind:
      break;
  }
  return true;
}

// Bytes [begin, begin + bytes) of another rank's input, and where they belong in this one's output.
struct Team::Part {
  size_t begin = 0;
  size_t bytes = 0;
  std::byte* output = nullptr;
};

const uint64_t* Team::splits_of(int rank) const {
  return reinterpret_cast<const uint64_t*>(arenas_[static_cast<size_t>(rank)] + layout_.splits +
                                           round_ % 2 * layout_.splits_bytes);
}

size_t Team::input_bytes(int rank, const Task& task) const {
  if (task.kind != Kind::AllToAll) {
    return own_input_bytes(task, rank, size_);
  }
  const uint64_t* splits = splits_of(rank);
  uint64_t elements = 0;
  for (int to = 0; to < size_; ++to) {
    elements += splits[to];
  }
  return elements * element_bytes(task.type);
}

Team::Part Team::part_from(int rank, const Task& task) const {
  auto* const output = static_cast<std::byte*>(task.output);
  const size_t payload = payload_bytes(task);
  const size_t element = element_bytes(task.type);
  switch (task.kind) {
    case Kind::Broadcast:
      return {0, rank == task.root ? payload : 0, output};
    case Kind::AllGather:
      return {0, payload, output + static_cast<size_t>(rank) * payload};
    case Kind::AllToAll: {
      const uint64_t* splits = splits_of(rank);
      Part part{.output = output};
      for (int to = 0; to < rank_; ++to) {
        part.begin += splits[to] * element;
      }
      part.bytes = splits[rank_] * element;
      for (int from = 0; from < rank; ++from) {
        part.output += static_cast<size_t>(task.output_splits[static_cast<size_t>(from)]) * element;
      }
      return part;
    }
    default:
      return {};
  }
}

// What a rank sends must be what the other expects, or memory beyond the output would be written.
void Team::check_splits(const Task& task) const {
  for (int rank = 0; rank < size_; ++rank) {
    const uint64_t sent = splits_of(rank)[rank_];
    const auto expected = static_cast<uint64_t>(task.output_splits[static_cast<size_t>(rank)]);
    if (sent != expected) {
      throw SplitMismatch{.rank = rank, .sent = sent, .expected = expected};
    }
  }
}

void Team::move(const Task& task) {
  if (task.kind == Kind::AllToAll) {
    check_splits(task);
  }
  const Part own = part_from(rank_, task);
  const auto* const own_input = static_cast<const std::byte*>(task.input) + own.begin;
  if (own.bytes > 0 && own.output != own_input) {
    std::memcpy(own.output, own_input, own.bytes);
  }
  const bool small = is_small(task);
  const bool is_bound =
      task.kind == Kind::Broadcast ? announcement(task.root).location.buffer != 0 : all_bound();
  if (!small && !is_bound) {
    move_pipelined(task);
    return;
  }
  for (int step = 1; step < size_; ++step) {
    const int rank = (rank_ + step) % size_;  // not all from the same one at once
    const Part part = part_from(rank, task);
    if (part.bytes > 0) {
      at_state(State::Work);
      stop_if_interrupted();
      std::memcpy(part.output, shared_input(rank) + part.begin, part.bytes);
    }
  }
  if (!small) {
    finish(task);  // the others read this rank's buffer; a slot is not written until then
  }
}

// Ordinary memory: while chunk c is copied in, the others' chunk c - 1 is copied out.
void Team::move_pipelined(const Task& task) {
  size_t longest = 0;
  for (int rank = 0; rank < size_; ++rank) {
    longest = std::max(longest, input_bytes(rank, task));
  }
  const size_t num_chunks = (longest + kChunkBytes - 1) / kChunkBytes;
  const size_t own_bytes = input_bytes(rank_, task);
  for (size_t step = 0; step < num_chunks + 1; ++step) {
    stop_if_interrupted();
    if (step < num_chunks) {
      if (step >= kNumChunkSlots) {
        await_all(Phase::Reduced, step - kNumChunkSlots, task.deadline);
      }
      const size_t begin = step * kChunkBytes;
      if (begin < own_bytes) {
        at_state(State::Work);
        std::memcpy(chunk_slot(rank_, step), static_cast<const std::byte*>(task.input) + begin,
                    std::min(kChunkBytes, own_bytes - begin));
      }
      at_state(State::Signal);
      pass(Phase::Staged, step);
    }
    if (step >= 1) {
      const size_t chunk = step - 1;
      await_all(Phase::Staged, chunk, task.deadline);
      take_chunk(task, chunk);
      at_state(State::Signal);
      pass(Phase::Reduced, chunk);
    }
  }
}

void Team::take_chunk(const Task& task, size_t chunk) const {
  for (int step = 1; step < size_; ++step) {
    const int rank = (rank_ + step) % size_;
    const Part part = part_from(rank, task);
    const size_t begin = std::max(part.begin, chunk * kChunkBytes);
    const size_t end = std::min(part.begin + part.bytes, (chunk + 1) * kChunkBytes);
    if (begin < end) {
      std::memcpy(part.output + (begin - part.begin),
                  chunk_slot(rank, chunk) + (begin - chunk * kChunkBytes), end - begin);
    }
  }
}

}  // namespace lockstep::shm
