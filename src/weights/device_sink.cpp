// Bytes into the memory of a device, through two pinned buffers: while one is copied, the other is
// filled, and the ranks read and exchange the next chunks. Types are converted on the way into the
// buffer, by the host, so that a parameter has the bits that it has on a CPU; strides are followed
// on the device.

#include <cstring>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <lockstep/base/error.h>

#include "base/round.h"
#include "device/memory.h"
#include "weights/elements.h"
#include "weights/scalar_type.h"
#include "weights/sink.h"

namespace lockstep::weights {

namespace {

using device::Lane;

constexpr size_t kNumSlots = 2;
constexpr uint64_t kAlignment = 64;  // of each piece, a multiple of every element's size

class DeviceSink : public WeightSink {
 public:
  DeviceSink(const LoadPlan& plan, std::span<const WeightTarget> targets, at::Device device,
             const SinkOptions& options)
      : device_(device), options_(options), copies_(device::copies_of(device)) {
    for (const PlannedTensor& planned : plan.tensors) {
      const at::Tensor& tensor = targets[planned.target].tensor;
      if (tensor.device() != device) {
        targets_.push_back(nullptr);
        continue;
      }
      const formats::TensorInfo& info = planned.tensor->info;
      auto target = std::make_unique<Target>(info.name, scalar_type_of(info.dtype));
      target->type = tensor.scalar_type();
      if (is_contiguous_in_file(info) && tensor.is_contiguous()) {
        target->flat = tensor.detach().view({-1});
      } else {
        target->blocks = std::make_unique<Blocks>(info, tensor);
      }
      if (!tensor.is_inference()) {
        tensor.unsafeGetTensorImpl()->bump_version();  // as copy_() does, for autograd
      }
      targets_.push_back(std::move(target));
    }
    copies_->after(Lane::ToDevice, copies_->now());  // whoever uses the targets now comes first
  }

  void put(size_t which, uint64_t offset, std::span<const std::byte> bytes) override {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    Target& target = *targets_[which];
    target.elements.add(offset, bytes, [&](const std::byte* data, int64_t first, int64_t count) {
      stage(target, data, first, count);
    });
  }

  void finish() override {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    flush();
    const device::MomentPtr last = copies_->reached(Lane::ToDevice);
    copies_->current_waits(last);
    wait_for(last);  // the pinned buffers go
  }

 private:
  struct Target {
    Target(std::string name_in_file, at::ScalarType type_in_file)
        : name(std::move(name_in_file)),
          file_type(type_in_file),
          elements(c10::elementSize(type_in_file)) {}

    const std::string name;
    const at::ScalarType file_type;
    at::ScalarType type = at::kFloat;  // of the parameter
    WholeElements elements;
    at::Tensor flat;                 // the parameter, if it is laid out as in the file
    std::unique_ptr<Blocks> blocks;  // else
  };

  // Elements in a buffer, in the file's order and the parameter's type.
  struct Piece {
    Target* target = nullptr;
    int64_t first = 0;
    int64_t count = 0;
    int64_t at = 0;  // in the buffer
  };

  struct Slot {
    at::Tensor host;             // pinned
    device::MomentPtr is_free;   // the copies out of it are done
    at::Tensor scratch;          // on the device, for parameters with other strides
    device::MomentPtr was_read;  // what was in the scratch is in the parameters
  };

  void stage(Target& target, const std::byte* data, int64_t first, int64_t count) {
    const auto size = static_cast<int64_t>(c10::elementSize(target.type));
    while (count > 0) {
      const at::Tensor& host = slot().host;
      const int64_t at = base::rounded_up<int64_t>(num_filled_, kAlignment);
      const int64_t part = std::min(count, (host.numel() - at) / size);
      if (part <= 0) {
        flush();
        continue;
      }
      auto* const to = static_cast<std::byte*>(host.mutable_data_ptr()) + at;
      if (target.type == target.file_type) {
        std::memcpy(to, data, static_cast<size_t>(part * size));
      } else {
        at::from_blob(to, {part}, at::TensorOptions(target.type))
            .copy_(at::from_blob(const_cast<std::byte*>(data), {part},
                                 at::TensorOptions(target.file_type)));
      }
      pieces_.push_back({.target = &target, .first = first, .count = part, .at = at});
      num_filled_ = at + part * size;
      data += static_cast<size_t>(part) * c10::elementSize(target.file_type);
      first += part;
      count -= part;
    }
  }

  // The one that is being filled; made with the first byte, so that all ranks hear of what cannot
  // be made.
  Slot& slot() {
    Slot& current = slots_[current_];
    if (!current.host.defined()) {
      current.host = device::pinned_memory(*copies_, "load_weights", options_.slot_bytes);
    }
    return current;
  }

  // Queues the copies of what is in the buffer, and goes on with the other one when that is free.
  void flush() {
    if (pieces_.empty()) {
      return;
    }
    Slot& full = slots_[current_];
    bool has_scattered = false;
    for (const Piece& piece : pieces_) {
      const at::Tensor host = elements_of(full.host, piece);
      if (piece.target->flat.defined()) {
        copies_->copy(Lane::ToDevice, piece.target->flat.narrow(0, piece.first, piece.count), host);
      } else {
        has_scattered = true;
        reserve_scratch(full);
        copies_->copy(Lane::ToDevice, elements_of(full.scratch, piece), host);
      }
    }
    full.is_free = copies_->reached(Lane::ToDevice);
    if (has_scattered) {
      scatter(full);
    }
    pieces_.clear();
    num_filled_ = 0;
    current_ = (current_ + 1) % kNumSlots;
    wait_for(slots_[current_].is_free);
  }

  // The lane waits until the scratch may be overwritten.
  void reserve_scratch(Slot& full) {
    if (!full.scratch.defined()) {
      full.scratch = device::with_memory(
          {.user = "load_weights", .device = device_, .bytes = options_.slot_bytes}, [&] {
            return at::empty({static_cast<int64_t>(options_.slot_bytes)},
                             at::TensorOptions(at::kByte).device(device_));
          });
      full.was_read = copies_->now();  // its memory may have been another tensor's
    }
    copies_->after(Lane::ToDevice, full.was_read);
  }

  void scatter(Slot& full) {
    copies_->current_waits(full.is_free);
    for (const Piece& piece : pieces_) {
      if (piece.target->blocks) {
        piece.target->blocks->put(elements_of(full.scratch, piece), piece.first);
      }
    }
    full.was_read = copies_->now();
  }

  static at::Tensor elements_of(const at::Tensor& memory, const Piece& piece) {
    const auto bytes = piece.count * static_cast<int64_t>(c10::elementSize(piece.target->type));
    return memory.narrow(0, piece.at, bytes).view(piece.target->type);
  }

  void wait_for(const device::MomentPtr& moment) {
    if (!device::wait_for(*copies_, moment, base::Deadline::after(options_.timeout))) {
      throw TimeoutError(
          "load_weights: {} has not taken the weights after {}; is it doing more than the group's "
          "time-out allows?",
          device_.str(), base::to_text(options_.timeout));
    }
  }

  const at::Device device_;
  const SinkOptions options_;
  std::vector<std::unique_ptr<Target>> targets_;  // null: of another sink
  Slot slots_[kNumSlots];
  std::vector<Piece> pieces_;  // in the current slot
  int64_t num_filled_ = 0;
  size_t current_ = 0;
  const std::unique_ptr<device::Copies>
      copies_;  // last: it ends its copies before they lose memory
};

}  // namespace

std::unique_ptr<WeightSink> make_device_sink(const LoadPlan& plan,
                                             std::span<const WeightTarget> targets,
                                             at::Device device, const SinkOptions& options) {
  return std::make_unique<DeviceSink>(plan, targets, device, options);
}

}  // namespace lockstep::weights
