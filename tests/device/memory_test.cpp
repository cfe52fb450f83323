// What the device's memory is asked for, and what is said where there is none.

#include "device/memory.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/refusal.h"

namespace lockstep {
namespace {

using test::refusal;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(DeviceMemory, ALackOfItSaysWhoWantedHowMuchAndWhatIsFree) {
  const std::string said = refusal([] {
    device::with_memory({.user = "loading w", .device = at::kCPU, .bytes = 1'500'000'000}, [] {
      TORCH_CHECK_WITH(OutOfMemoryError, false, "tried to allocate 1.4 GiB");
      return at::Tensor();
    });
  });
  EXPECT_THAT(said, AllOf(HasSubstr("loading w: cpu has no memory for 1.50 GB: the host has "),
                          HasSubstr(" GB available; use fewer ranks per GPU"),
                          HasSubstr("tried to allocate 1.4 GiB")));
  EXPECT_THAT(said, ::testing::Not(HasSubstr("Exception raised from")));
}

TEST(DeviceMemory, OtherErrorsStayWhatTheyAre) {
  const auto fails = [] {
    device::with_memory({.user = "loading w"}, [] {
      TORCH_CHECK(false, "an illegal address");
      return at::Tensor();
    });
  };
  EXPECT_THROW(fails(), c10::Error);
}

TEST(DeviceMemory, DenseIsWhatHasBytesOnTheCpuOrAGpu) {
  EXPECT_TRUE(device::is_dense(at::zeros({2, 3}).t()));
  EXPECT_FALSE(device::is_dense(at::Tensor()));
  EXPECT_FALSE(device::is_dense(at::eye(2).to_sparse()));
  EXPECT_FALSE(device::is_dense(at::empty({2}, at::TensorOptions(at::kMeta))));
}

TEST(DeviceMemory, BytesAreThoseOfTheElementsInTheirOrder) {
  const at::Tensor numbers = at::arange(6, at::kShort).view({2, 3});
  const at::Tensor bytes = device::bytes_of(numbers);
  EXPECT_TRUE(bytes.equal(at::tensor({0, 0, 1, 0, 2, 0, 3, 0, 4, 0, 5, 0}).to(at::kByte)));
  EXPECT_EQ(bytes.data_ptr(), numbers.data_ptr());
  EXPECT_EQ(device::bytes_of(at::empty({0, 3}, at::kHalf)).numel(), 0);
  EXPECT_EQ(device::bytes_of(at::scalar_tensor(7, at::kLong)).numel(), 8);
}

}  // namespace
}  // namespace lockstep
