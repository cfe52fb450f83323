#include "checkpoint/device_snapshot.h"

#include <algorithm>
#include <utility>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

#include "device/memory.h"

namespace lockstep::checkpoint {

namespace {

using device::Lane;

// Copies that are under way while the writer writes.
constexpr size_t kNumAhead = 8;

constexpr std::chrono::milliseconds kLeastPatience{1};

}  // namespace

DeviceSaves::DeviceSaves(at::Device of_device, uint64_t limit_bytes)
    : device(of_device), pool(limit_bytes), copies(device::copies_of(of_device)) {}

DeviceSnapshot::DeviceSnapshot(DeviceSaves& saves, const Options& options)
    : saves_(saves), timeout_(options.timeout) {
  constexpr auto kBytes = static_cast<int64_t>(PinnedPool::kBytes);
  for (const at::Tensor& part : options.parts) {
    for (int64_t offset = 0; offset < part.numel(); offset += kBytes) {
      const int64_t bytes = std::min(kBytes, part.numel() - offset);
      chunks_.push_back({.from = part.narrow(0, offset, bytes),
                         .host = {},
                         .bytes = static_cast<uint64_t>(bytes),
                         .is_copied = nullptr});
    }
  }
  saves_.copies->after(Lane::ToHost, saves_.copies->now());
  while (num_queued_ < chunks_.size()) {  // to pin more is the writer's work
    at::Tensor memory = saves_.pool.take_used();
    if (!memory.defined()) {
      break;
    }
    queue(std::move(memory));
  }
}

DeviceSnapshot::~DeviceSnapshot() {
  for (Chunk& chunk : chunks_) {
    if (chunk.host.defined()) {
      saves_.pool.give_back(std::move(chunk.host));
    }
  }
}

void DeviceSnapshot::queue(at::Tensor memory) {
  Chunk& chunk = chunks_[num_queued_++];
  chunk.host = std::move(memory);
  saves_.copies->copy(Lane::ToHost, chunk.host.narrow(0, 0, chunk.from.numel()), chunk.from);
  last_ = saves_.copies->reached(Lane::ToHost);
  chunk.is_copied = last_;
  chunk.from.reset();
}

std::span<const std::byte> DeviceSnapshot::begin_write(size_t which) {
  std::unique_lock lock(mutex_);
  while (num_queued_ < std::min(chunks_.size(), which + 1 + kNumAhead)) {
    at::Tensor memory = saves_.pool.take_used();
    if (!memory.defined() && (has_fresh_ || num_queued_ <= which)) {
      try {
        memory = saves_.pool.take_fresh(*saves_.copies);
      } catch (const UsageError&) {
        if (num_queued_ <= which) {
          throw;
        }
      }
      has_fresh_ = memory.defined();
    }
    if (!memory.defined()) {
      break;
    }
    queue(std::move(memory));
  }
  LOCKSTEP_CHECK(which < num_queued_, "chunk {} of {} has no memory", which, chunks_.size());
  const Chunk& chunk = chunks_[which];
  lock.unlock();
  if (!device::wait_for(*saves_.copies, chunk.is_copied, base::Deadline::after(timeout_))) {
    throw IoError(
        "checkpoint: {} has not finished the work that comes before its copy after {}; is it doing "
        "more than the group's time-out allows?",
        saves_.device.str(), base::to_text(timeout_));
  }
  return {static_cast<const std::byte*>(chunk.host.const_data_ptr()), chunk.bytes};
}

void DeviceSnapshot::end_write(size_t which) {
  const std::lock_guard lock(mutex_);
  saves_.pool.give_back(std::exchange(chunks_[which].host, {}));
  ++num_written_;
  changed_.notify_all();
}

void DeviceSnapshot::close() {
  const std::lock_guard lock(mutex_);
  is_closed_ = true;
  changed_.notify_all();
}

at::Tensor DeviceSnapshot::take_in_capture() {
  at::Tensor memory = saves_.pool.take_used();
  if (memory.defined() || !has_fresh_) {
    return memory;
  }
  try {
    memory = saves_.pool.take_fresh(*saves_.copies);
  } catch (const UsageError& error) {
    log::debug("checkpoint", "waiting for the writer: {}", error.what());
  }
  has_fresh_ = memory.defined();
  return memory;
}

// To give up would lose the save and not mend the disk: so it waits, and says for what.
void DeviceSnapshot::wait_for_writer(std::unique_lock<std::mutex>& lock) {
  const size_t written = num_written_;
  const auto patience = std::max(timeout_, kLeastPatience);
  const auto has_changed = [&] { return is_closed_ || num_written_ > written; };
  while (!changed_.wait_for(lock, patience, has_changed)) {
    log::warn("checkpoint",
              "training waits for the save, which has written nothing for {}: there is too little "
              "pinned memory for the whole state ({} MiB), and the disk or the bucket does not "
              "answer",
              base::to_text(patience), saves_.pool.num_pinned() * PinnedPool::kBytes >> 20);
  }
}

void DeviceSnapshot::capture() {
  std::unique_lock lock(mutex_);
  while (num_queued_ < chunks_.size() && !is_closed_) {
    if (at::Tensor memory = take_in_capture(); memory.defined()) {
      queue(std::move(memory));
    } else {
      wait_for_writer(lock);
    }
  }
  saves_.copies->current_waits(last_);
}

}  // namespace lockstep::checkpoint
