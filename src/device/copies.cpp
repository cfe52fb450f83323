#include "device/copies.h"

#include <chrono>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>

#include <lockstep/base/log.h>

#include "device/plugin.h"

namespace lockstep::device {
namespace {

using namespace std::chrono_literals;

// A short wait costs no sleep; a long one no core.
constexpr auto kYieldTime = 50us;
constexpr auto kNap = 20us;

// Not for long: a GPU that hangs must not hold up the end of a group.
constexpr auto kEndTime = 1s;

// While one lives, the device is the thread's current one. Events and streams of libtorch go to
// their device and back by themselves, but coming back they make a context on a device that has
// none: about 500 MB of GPU 0 for every rank, and an error where a GPU takes one process only.
using OnDevice = c10::DeviceGuard;

class StreamMoment : public Moment {
 public:
  explicit StreamMoment(const c10::Stream& stream)
      : device_(stream.device()), event_(stream.device_type()) {
    const OnDevice guard(device_);
    event_->record(stream);
  }
  ~StreamMoment() override {
    try {
      const OnDevice guard(device_);
      event_.reset();
    } catch (const std::exception& error) {
      log::debug("device", "an event was not destroyed: {}", error.what());
    }
  }
  StreamMoment(const StreamMoment&) = delete;
  StreamMoment& operator=(const StreamMoment&) = delete;

  bool has_passed() const {
    const OnDevice guard(device_);
    return event_->query();
  }
  void hold_back(const c10::Stream& stream) const {
    const OnDevice guard(stream.device());
    event_->block(stream);
  }

 private:
  const at::Device device_;
  std::optional<c10::Event> event_;
};

const StreamMoment& stream_moment(const MomentPtr& moment) {
  return static_cast<const StreamMoment&>(*moment);
}

// Memory that was pinned stays so as long as it exists: unpinning must come before it is unmapped.
class PinnedMemory {
 public:
  explicit PinnedMemory(at::Tensor memory) : memory_(std::move(memory)) {
    const LockstepCudaPlugin* cuda = plugin();
    const char* error = cuda ? cuda->pin(memory_.data_ptr(), memory_.nbytes()) : "no plug-in";
    is_pinned_ = error == nullptr;
    if (error) {
      log::debug("device", "{} bytes of shared memory are not pinned, copies are slower: {}",
                 memory_.nbytes(), error);
    }
  }
  ~PinnedMemory() {
    if (is_pinned_) {
      if (const char* error = plugin()->unpin(memory_.data_ptr())) {
        log::warn("device", "memory stays pinned: {}", error);
      }
    }
  }
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;

 private:
  const at::Tensor memory_;
  bool is_pinned_ = false;
};

using PinnedList = std::vector<std::unique_ptr<PinnedMemory>>;

void keep_for_good(PinnedList pinned) {
  static std::mutex mutex;
  static auto* const kept = new std::vector<PinnedList>;  // never destroyed
  const std::lock_guard lock(mutex);
  kept->push_back(std::move(pinned));
}

class StreamCopies final : public Copies {
 public:
  explicit StreamCopies(at::Device device)
      : device_(device),
        runtime_(device.type()),
        to_host_(runtime_.getStreamFromGlobalPool(device)),
        to_device_(runtime_.getStreamFromGlobalPool(device)) {}

  // What is still being copied must not lose its memory: it stays pinned for good, in the rare case
  // that the GPU does not get there in time.
  ~StreamCopies() override {
    try {
      const OnDevice guard(device_);
      const base::Deadline limit = base::Deadline::after(kEndTime);
      const bool has_ended = wait_for(*this, reached(Lane::ToHost), limit) &&
                             wait_for(*this, reached(Lane::ToDevice), limit);
      if (has_ended) {
        pinned_.clear();
        return;
      }
      log::warn("device", "{} is still busy: what is copied there keeps its pinned memory",
                device_.str());
    } catch (const std::exception& error) {
      log::warn("device", "copies did not end well: {}", error.what());
    }
    keep_for_good(std::move(pinned_));
  }

  MomentPtr now() override { return std::make_shared<StreamMoment>(runtime_.getStream(device_)); }
  void current_waits(const MomentPtr& moment) override {
    if (moment) {
      stream_moment(moment).hold_back(runtime_.getStream(device_));
    }
  }

  void after(Lane lane, const MomentPtr& moment) override {
    if (moment) {
      stream_moment(moment).hold_back(stream(lane));
    }
  }

  void copy(Lane lane, const at::Tensor& to, const at::Tensor& from) override {
    copy_on(stream(lane), to, from);
  }

  at::Tensor memory_of_lane(at::IntArrayRef sizes, at::ScalarType type) override {
    const c10::StreamGuard guard(to_device_);
    return at::empty(sizes, at::TensorOptions(device_).dtype(type));
  }
  void current_uses(const at::Tensor& memory) override {
    memory.record_stream(runtime_.getStream(device_));
  }

  MomentPtr copy_apart(const at::Tensor& to, const at::Tensor& from,
                       const MomentPtr& moment) override {
    const c10::Stream apart = runtime_.getStreamFromGlobalPool(device_);
    if (moment) {
      stream_moment(moment).hold_back(apart);
    }
    copy_on(apart, to, from);
    return std::make_shared<StreamMoment>(apart);
  }

  MomentPtr reached(Lane lane) override { return std::make_shared<StreamMoment>(stream(lane)); }
  bool has_passed(const MomentPtr& moment) override {
    return !moment || stream_moment(moment).has_passed();
  }

  at::Tensor host_memory(int64_t bytes) override {
    const OnDevice guard(device_);
    return at::empty({bytes}, at::TensorOptions(at::kByte).pinned_memory(true));
  }
  void make_fast(const at::Tensor& memory) override {
    const OnDevice guard(device_);  // pinning needs a context, too
    pinned_.push_back(std::make_unique<PinnedMemory>(memory));
  }

 private:
  // libtorch keeps memory of the device, and its own pinned memory, until the stream is done with
  // it.
  static void copy_on(const c10::Stream& stream, const at::Tensor& to, const at::Tensor& from) {
    const OnDevice on_device(stream.device());
    // The caller's tensor may be one that autograd watches: it sees none of this.
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const c10::StreamGuard guard(stream);
    to.copy_(from, /*non_blocking=*/true);
    (to.is_cpu() ? from : to).record_stream(stream);
  }

  const c10::Stream& stream(Lane lane) const {
    return lane == Lane::ToHost ? to_host_ : to_device_;
  }

  const at::Device device_;
  const c10::impl::VirtualGuardImpl runtime_;
  const c10::Stream to_host_;
  const c10::Stream to_device_;
  PinnedList pinned_;
};

}  // namespace

bool wait_for(Copies& copies, const MomentPtr& moment, base::Deadline deadline,
              const std::function<void()>& look) {
  const auto begin = base::Clock::now();
  while (!copies.has_passed(moment)) {
    if (look) {
      look();
    }
    const auto now = base::Clock::now();
    if (now >= deadline.when()) {
      return false;
    }
    if (now - begin < kYieldTime) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kNap);
    }
  }
  return true;
}

std::unique_ptr<Copies> make_copies(at::Device device) {
  return std::make_unique<StreamCopies>(device);
}

}  // namespace lockstep::device
