#include "device/copies.h"

#include <chrono>
#include <map>
#include <thread>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
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

class StreamMoment : public Moment {
 public:
  explicit StreamMoment(const c10::Stream& stream) : event_(stream.device_type()) {
    event_.record(stream);
  }

  bool has_passed() const { return event_.query(); }
  void hold_back(const c10::Stream& stream) const { event_.block(stream); }

 private:
  c10::Event event_;
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

class StreamCopies : public Copies {
 public:
  explicit StreamCopies(at::Device device)
      : device_(device),
        runtime_(device.type()),
        to_host_(runtime_.getStreamFromGlobalPool(device)),
        to_device_(runtime_.getStreamFromGlobalPool(device)) {}

  ~StreamCopies() override {
    // What is still being copied must not lose its memory.
    for (const c10::Stream& stream : {to_host_, to_device_}) {
      try {
        stream.synchronize();
      } catch (const std::exception& error) {
        log::warn("device", "copies did not end well: {}", error.what());
      }
    }
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
    return at::empty({bytes}, at::TensorOptions(at::kByte).pinned_memory(true));
  }
  void make_fast(const at::Tensor& memory) override {
    pinned_.push_back(std::make_unique<PinnedMemory>(memory));
  }

 private:
  // libtorch keeps memory of the device, and its own pinned memory, until the stream is done with
  // it.
  static void copy_on(const c10::Stream& stream, const at::Tensor& to, const at::Tensor& from) {
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
  std::vector<std::unique_ptr<PinnedMemory>> pinned_;
};

}  // namespace

bool wait_for(Copies& copies, const MomentPtr& moment, base::Deadline deadline) {
  const auto begin = base::Clock::now();
  while (!copies.has_passed(moment)) {
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
