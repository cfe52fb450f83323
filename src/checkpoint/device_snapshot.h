#pragma once

// The memory of a device that a rank saves, on its way through pinned memory to the thread that
// writes it.
//
// The copies run on a stream of their own, after what the caller's stream had been given when the
// save began, and beside what it is given next. capture() lets the caller's stream go on after the
// last of them; the host waits only while there is not enough pinned memory for all.

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "checkpoint/pinned_pool.h"

namespace lockstep::checkpoint {

// What the saves of a writer share.
struct DeviceSaves {
  DeviceSaves(at::Device of_device, uint64_t limit_bytes);

  const at::Device device;
  PinnedPool pool;
  const std::unique_ptr<device::Copies> copies;  // last: it ends its copies before the pool goes
};

// Threads: one that writes, one that captures.
class DeviceSnapshot {
 public:
  struct Options {
    std::vector<at::Tensor> parts;  // bytes of the device, flat
    std::chrono::milliseconds timeout{0};
  };

  // On the thread whose current stream the parts belong to. `saves` must outlive it.
  DeviceSnapshot(DeviceSaves& saves, const Options& options);
  ~DeviceSnapshot();
  DeviceSnapshot(const DeviceSnapshot&) = delete;
  DeviceSnapshot& operator=(const DeviceSnapshot&) = delete;

  // Each part is cut into chunks of its own.
  size_t num_chunks() const { return chunks_.size(); }

  // The writer's, for each chunk in rising order: its bytes, until end_write(). Throws UsageError
  // if there is no pinned memory at all, and IoError if the device is too late.
  std::span<const std::byte> begin_write(size_t which);
  void end_write(size_t which);

  // The save has ended: capture() waits for no more.
  void close();

  // Returns when the parts may change by what the calling thread's current stream is given next. If
  // that is for want of pinned memory, and the writer writes nothing for the time-out, the log says
  // so each time.
  void capture();

 private:
  struct Chunk {
    at::Tensor from;  // until its copy is queued
    at::Tensor host;  // a piece of the pool
    uint64_t bytes = 0;
    device::MomentPtr is_copied;
  };

  void queue(at::Tensor memory);  // the copy of the next chunk
  at::Tensor take_in_capture();   // an undefined tensor if the writer is to be waited for
  void wait_for_writer(std::unique_lock<std::mutex>& lock);

  DeviceSaves& saves_;
  const std::chrono::milliseconds timeout_;
  std::mutex mutex_;  // also of the lane and the pool
  std::condition_variable changed_;
  std::vector<Chunk> chunks_;
  size_t num_queued_ = 0;
  size_t num_written_ = 0;
  bool is_closed_ = false;
  bool has_fresh_ = true;  // until pinning fails or reaches its limit
  device::MomentPtr last_;
};

}  // namespace lockstep::checkpoint
