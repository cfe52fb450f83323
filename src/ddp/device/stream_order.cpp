#include "ddp/device/stream_order.h"

#include <optional>
#include <unordered_set>

#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace lockstep::ddp {

struct StreamOrder::State {
  explicit State(at::Tensor the_memory)
      : memory(std::move(the_memory)), streams(memory.device().type()) {}

  at::Tensor memory;
  c10::impl::VirtualGuardImpl streams;
  std::optional<c10::Stream> last;
  std::unordered_set<c10::Stream> seen;
};

StreamOrder::StreamOrder() = default;
StreamOrder::~StreamOrder() = default;
StreamOrder::StreamOrder(StreamOrder&&) noexcept = default;
StreamOrder& StreamOrder::operator=(StreamOrder&&) noexcept = default;

void StreamOrder::watch(const at::Tensor& memory) {
  state_.reset();
  if (!memory.device().is_cpu()) {
    state_ = std::make_unique<State>(memory);
    join();
  }
}

void StreamOrder::join() {
  if (!state_) {
    return;
  }
  const c10::Stream current = state_->streams.getStream(state_->memory.device());
  if (state_->last == current) {
    return;
  }
  if (state_->last) {
    // The event goes to its device and back, and back would make a context where there is none.
    const c10::DeviceGuard guard(current.device());
    c10::Event event(current.device_type());
    event.record(*state_->last);
    event.block(current);
  }
  if (state_->seen.insert(current).second) {
    state_->memory.record_stream(current);
  }
  state_->last = current;
}

}  // namespace lockstep::ddp
