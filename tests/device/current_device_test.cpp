// Copies of one device leave the others alone. A device that no machine has counts who touches it:
// as with CUDA, events and streams go to their device and back, and going there makes a context.

#include <set>

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <gtest/gtest.h>

#include "device/copies.h"

namespace lockstep::device {
namespace {

constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;
thread_local c10::DeviceIndex current = 0;
std::set<c10::DeviceIndex>& contexts() {
  static std::set<c10::DeviceIndex> set;
  return set;
}
int num_events = 0;

// The parts of libtorch's guard for CUDA that matter here, written as they are there.
class CountingGuard : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return kType; }
  c10::Device getDevice() const override { return {kType, current}; }
  void setDevice(c10::Device device) const override {
    if (device.index() != current) {
      contexts().insert(device.index());
      current = device.index();
    }
  }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    setDevice(device);
    return before;
  }
  // Does not make a context, as libtorch's MaybeSetDevice.
  void uncheckedSetDevice(c10::Device device) const noexcept override { current = device.index(); }

  c10::Stream getStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, device);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool /*is_urgent*/) const override {
    return c10::Stream(c10::Stream::UNSAFE, device, 7);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return 4; }

  void record(void** event, const c10::Stream& stream, c10::DeviceIndex /*device*/,
              c10::EventFlag /*flag*/) const override {
    const c10::Device before = getDevice();
    setDevice(stream.device());
    if (*event == nullptr) {
      *event = &num_events;
      ++num_events;
    }
    setDevice(before);
  }
  void block(void* /*event*/, const c10::Stream& stream) const override {
    const c10::Device before = getDevice();
    setDevice(stream.device());
    setDevice(before);
  }
  bool queryEvent(void* /*event*/) const override {
    contexts().insert(current);
    return true;
  }
  void destroyEvent(void* event, c10::DeviceIndex device) const noexcept override {
    if (event == nullptr) {
      return;
    }
    const c10::Device before = getDevice();
    setDevice({kType, device});
    --num_events;
    setDevice(before);
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, CountingGuard)

class CurrentDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    contexts().clear();
    current = 0;
  }
  const std::set<c10::DeviceIndex> only_3_{3};
};

TEST_F(CurrentDevice, EventsMakeNoContextOnAnotherDevice) {
  {
    const auto copies = make_copies(at::Device(kType, 3));
    const MomentPtr now = copies->now();
    copies->after(Lane::ToHost, now);
    copies->current_waits(copies->reached(Lane::ToDevice));
    EXPECT_EQ(contexts(), only_3_) << "recorded and waited for";
    EXPECT_TRUE(copies->has_passed(now));
    EXPECT_EQ(contexts(), only_3_) << "asked";
    EXPECT_EQ(num_events, 1) << "the other one is gone";
  }
  EXPECT_EQ(num_events, 0);
  EXPECT_EQ(contexts(), only_3_) << "destroyed";
  EXPECT_EQ(current, 0) << "the caller's device is what it was";
}

}  // namespace
}  // namespace lockstep::device
