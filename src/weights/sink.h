#pragma once

// Where bytes of a file become weights. The one place that knows what a parameter is: a GPU's sink
// takes the same calls.

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
  // rising order, without a hole, cut anywhere.
  virtual void put(size_t which, uint64_t offset, std::span<const std::byte> bytes) = 0;
};

// Writes into the targets, which may have any type and strides. `plan` and `targets` must outlive
// it.
std::unique_ptr<WeightSink> make_cpu_sink(const LoadPlan& plan,
                                          std::span<const WeightTarget> targets);

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
