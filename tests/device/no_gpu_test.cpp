// What a program sees on a machine without a GPU, or where it must leave the GPU alone.

#include <cstdlib>

#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>
#include <lockstep/device/device.h>

namespace lockstep {
namespace {

class NoGpu : public ::testing::Test {
 protected:
  // For all of the process: libtorch is asked once.
  static void SetUpTestSuite() { setenv("LOCKSTEP_DEVICE", "cpu", 1); }
  void TearDown() override { setenv("LOCKSTEP_DEVICE", "cpu", 1); }
};

TEST_F(NoGpu, EverythingIsOnTheCpu) {
  EXPECT_FALSE(cuda_is_available());
  EXPECT_EQ(cuda_problem(), "LOCKSTEP_DEVICE=cpu forbids it");
  EXPECT_EQ(local_device(), at::Device(at::kCPU));
  // libtorch's own question finds nothing either, and does not hang.
  EXPECT_FALSE(at::hasCUDA());
  EXPECT_EQ(at::empty({2}, at::TensorOptions(local_device())).numel(), 2);
}

TEST_F(NoGpu, AskedForItIsAnError) {
  setenv("LOCKSTEP_DEVICE", "cuda", 1);
  try {
    local_device();
    FAIL() << "no error";
  } catch (const UsageError& error) {
    EXPECT_STREQ(error.what(), "LOCKSTEP_DEVICE=cuda: LOCKSTEP_DEVICE=cpu forbids it");
  }
}

TEST_F(NoGpu, UnknownDevicesAreNamed) {
  setenv("LOCKSTEP_DEVICE", "gpu", 1);
  try {
    local_device();
    FAIL() << "no error";
  } catch (const UsageError& error) {
    EXPECT_STREQ(error.what(), "LOCKSTEP_DEVICE=gpu is not known; it is auto, cpu or cuda");
  }
}

}  // namespace
}  // namespace lockstep
