#pragma once

// Where bytes of a file become weights. The one place that knows what a parameter is, and on which
// device. Bytes come in memory of the host; a way from storage straight into a GPU's memory would
// be another kind of sink, for chunks that its window (weights/window.h) holds on the device: it
// needs what DeviceSink does behind its copies, Blocks (weights/elements.h).

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "weights/plan.h"

namespace lockstep::weights {

// Threads: one at a time.
class WeightSink {
 public:
  virtual ~WeightSink() = default;

  // Bytes of the planned tensor number `which`, from `offset` of its bytes in the file on: in
  // rising order, without a hole, cut anywhere. They may change when this returns.
  virtual void put(size_t which, uint64_t offset, std::span<const std::byte> bytes) = 0;

  // After the last put(): the targets are filled for whatever the caller's current stream is given
  // from now on.
  virtual void finish() {}
};

struct SinkOptions {
  std::chrono::milliseconds timeout{0};  // for each wait for a GPU
  uint64_t slot_bytes = 4u << 20;        // of each of a GPU's two pinned buffers
};

// Writes into the targets, which may have any type and strides and lie on any devices. `plan` and
// `targets` must outlive it.
std::unique_ptr<WeightSink> make_sink(const LoadPlan& plan, std::span<const WeightTarget> targets,
                                      const SinkOptions& options);

// Those for the targets of one device; they are given no others.
std::unique_ptr<WeightSink> make_cpu_sink(const LoadPlan& plan,
                                          std::span<const WeightTarget> targets);
std::unique_ptr<WeightSink> make_device_sink(const LoadPlan& plan,
                                             std::span<const WeightTarget> targets,
                                             at::Device device, const SinkOptions& options);

// Cuts chunks of the stream, in rising order, into the tensors that they hold.
class Scatter {
 public:
  Scatter(const LoadPlan& plan, WeightSink& sink) : plan_(plan), sink_(sink) {}

  void put(uint64_t position, std::span<const std::byte> bytes);

 private:
  const LoadPlan& plan_;
  WeightSink& sink_;
  std::vector<size_t> open_;  // begun, not ended: tensors may share their bytes
  size_t next_ = 0;
};

}  // namespace lockstep::weights
