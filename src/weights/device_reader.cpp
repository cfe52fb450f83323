#include "weights/device_reader.h"

#include <algorithm>

#include <lockstep/base/error.h>

#include "device/memory.h"

namespace lockstep::weights {

namespace {

using device::Lane;

// No group whose time-out would count: longer than any queue of work that is not stuck.
constexpr std::chrono::minutes kTimeout{10};

}  // namespace

DeviceReader::DeviceReader(at::Device device, std::string user)
    : device_(device), user_(std::move(user)), copies_(device::copies_of(device)) {}

void DeviceReader::read(const at::Tensor& contiguous, const Take& take) {
  const at::Tensor bytes = device::bytes_of(contiguous);
  const int64_t num_pieces = (bytes.numel() + kSlotBytes - 1) / kSlotBytes;
  device::MomentPtr arrived[kNumSlots];
  const auto size_of = [&](int64_t piece) {
    return std::min(kSlotBytes, bytes.numel() - piece * kSlotBytes);
  };
  const auto fetch = [&](int64_t piece) {
    at::Tensor& slot = slots_[static_cast<size_t>(piece) % kNumSlots];
    if (!slot.defined()) {
      slot = device::pinned_memory(*copies_, user_, kSlotBytes);
    }
    copies_->copy(Lane::ToHost, slot.narrow(0, 0, size_of(piece)),
                  bytes.narrow(0, piece * kSlotBytes, size_of(piece)));
    arrived[static_cast<size_t>(piece) % kNumSlots] = copies_->reached(Lane::ToHost);
  };
  copies_->after(Lane::ToHost, copies_->now());
  for (int64_t piece = 0; piece < std::min<int64_t>(num_pieces, kNumSlots); ++piece) {
    fetch(piece);
  }
  for (int64_t piece = 0; piece < num_pieces; ++piece) {
    const size_t slot = static_cast<size_t>(piece) % kNumSlots;
    if (!device::wait_for(*copies_, arrived[slot], base::Deadline::after(kTimeout))) {
      throw TimeoutError("{}: {} has not finished its work after {}", user_, device_.str(),
                         base::to_text(kTimeout));
    }
    const auto* data = static_cast<const std::byte*>(slots_[slot].const_data_ptr());
    take({data, static_cast<size_t>(size_of(piece))});
    if (piece + static_cast<int64_t>(kNumSlots) < num_pieces) {
      fetch(piece + static_cast<int64_t>(kNumSlots));
    }
  }
}

}  // namespace lockstep::weights
