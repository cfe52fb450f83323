#include "weights/sink.h"

#include <algorithm>
#include <map>

#include "device/memory.h"

namespace lockstep::weights {

namespace {

// Targets on several devices, or on the CPU and one.
class RoutedSink : public WeightSink {
 public:
  RoutedSink(const LoadPlan& plan, std::span<const WeightTarget> targets,
             const SinkOptions& options) {
    std::map<std::string, WeightSink*> by_device;
    for (const PlannedTensor& planned : plan.tensors) {
      const at::Device device = targets[planned.target].tensor.device();
      WeightSink*& sink = by_device[device.str()];
      if (sink == nullptr) {
        sinks_.push_back(device::needs_copies(device)
                             ? make_device_sink(plan, targets, device, options)
                             : make_cpu_sink(plan, targets));
        sink = sinks_.back().get();
      }
      routes_.push_back(sink);
    }
  }

  void put(size_t which, uint64_t offset, std::span<const std::byte> bytes) override {
    routes_[which]->put(which, offset, bytes);
  }

  void finish() override {
    for (const auto& sink : sinks_) {
      sink->finish();
    }
  }

 private:
  std::vector<std::unique_ptr<WeightSink>> sinks_;
  std::vector<WeightSink*> routes_;  // of each planned tensor
};

}  // namespace

std::unique_ptr<WeightSink> make_sink(const LoadPlan& plan, std::span<const WeightTarget> targets,
                                      const SinkOptions& options) {
  return std::make_unique<RoutedSink>(plan, targets, options);
}

void Scatter::put(uint64_t position, std::span<const std::byte> bytes) {
  const uint64_t end = position + bytes.size();
  while (next_ < plan_.tensors.size() && plan_.tensors[next_].position < end) {
    open_.push_back(next_++);
  }
  std::erase_if(open_, [&](size_t which) {
    const PlannedTensor& planned = plan_.tensors[which];
    const uint64_t tensor_end = planned.position + planned.tensor->info.size_bytes;
    const uint64_t from = std::max(planned.position, position);
    const uint64_t to = std::min(tensor_end, end);
    sink_.put(which, from - planned.position, bytes.subspan(from - position, to - from));
    return tensor_end <= end;
  });
}

}  // namespace lockstep::weights
