#include "checkpoint/snapshot.h"

#include <algorithm>
#include <cstring>
#include <sys/mman.h>

#include <lockstep/base/log.h>

namespace lockstep::checkpoint {

base::Mapping CopyPool::take() {
  if (!idle_.empty()) {
    base::Mapping memory = std::move(idle_.back());
    idle_.pop_back();
    return memory;
  }
  return base::Mapping(-1, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS);
}

Snapshot::Snapshot(const std::vector<Share::Memory>& memory, CopyPool& pool) : pool_(pool) {
  for (const Share::Memory& piece : memory) {
    for (uint64_t offset = 0; offset < piece.bytes; offset += CopyPool::kBytes) {
      Chunk chunk;
      chunk.data = piece.data + offset;
      chunk.bytes = std::min(CopyPool::kBytes, piece.bytes - offset);
      chunks_.push_back(std::move(chunk));
    }
  }
}

Snapshot::~Snapshot() {
  for (Chunk& chunk : chunks_) {
    if (chunk.copy.data() != nullptr) {
      pool_.give_back(std::move(chunk.copy));
    }
  }
}

std::span<const std::byte> Snapshot::begin_write(size_t which) {
  std::unique_lock lock(mutex_);
  Chunk& chunk = chunks_[which];
  changed_.wait(lock, [&] { return chunk.state != State::Copying; });
  if (chunk.state == State::Copied) {
    return {chunk.copy.data(), chunk.bytes};
  }
  chunk.state = State::Writing;
  return {chunk.data, chunk.bytes};
}

void Snapshot::end_write(size_t which) {
  const std::lock_guard lock(mutex_);
  Chunk& chunk = chunks_[which];
  chunk.state = State::Done;
  write_s_ = pace_.seconds() / static_cast<double>(++num_written_);
  changed_.notify_all();
}

void Snapshot::close() {
  std::unique_lock lock(mutex_);
  is_closed_ = true;
  changed_.notify_all();
  changed_.wait(lock, [&] {
    return std::none_of(chunks_.begin(), chunks_.end(),
                        [](const Chunk& chunk) { return chunk.state == State::Copying; });
  });
}

std::vector<Snapshot::Chunk>::iterator Snapshot::last_live() {
  const auto found = std::find_if(chunks_.rbegin(), chunks_.rend(),
                                  [](const Chunk& chunk) { return chunk.state == State::Live; });
  return found == chunks_.rend() ? chunks_.end() : std::prev(found.base());
}

bool Snapshot::is_captured() const {
  return is_closed_ || std::all_of(chunks_.begin(), chunks_.end(), [](const Chunk& chunk) {
           return chunk.state == State::Copied || chunk.state == State::Done;
         });
}

base::Mapping Snapshot::take_memory() {
  try {
    return pool_.take();
  } catch (const std::exception& error) {
    log::debug("checkpoint", "no memory for a copy ({}): waiting for the writer", error.what());
    return {};
  }
}

void Snapshot::capture() {
  std::unique_lock lock(mutex_);
  for (auto chunk = last_live(); chunk != chunks_.end() && !is_closed_; chunk = last_live()) {
    const bool is_fresh = !pool_.has_used();
    if (is_fresh && fresh_s_ > write_s_ && num_written_ > 0) {
      break;
    }
    base::Mapping memory = take_memory();
    if (memory.data() == nullptr) {
      break;
    }
    chunk->state = State::Copying;
    chunk->copy = std::move(memory);
    lock.unlock();
    const base::Stopwatch watch;
    std::memcpy(chunk->copy.data(), chunk->data, chunk->bytes);
    lock.lock();
    fresh_s_ = is_fresh ? watch.seconds() : fresh_s_;
    chunk->state = State::Copied;
    changed_.notify_all();
  }
  changed_.wait(lock, [&] { return is_captured(); });
}

}  // namespace lockstep::checkpoint
