// A question that a global of the program asks, before main() and before libraries are asked to do
// anything: `torch::Device device(torch::cuda::is_available() ? torch::kCUDA : torch::kCPU);`.

#include <ATen/detail/CUDAHooksInterface.h>
#include <gtest/gtest.h>

#include "device/cuda_library.h"

namespace lockstep::device {
namespace {

// libtorch keeps what it finds here: without these hooks it has no CUDA, for good.
const bool had_hooks = at::CUDAHooksRegistry()->Has("CUDAHooks");

TEST(EarlyQuestion, FindsTheHooksThatLoadCuda) {
  EXPECT_TRUE(had_hooks);
  EXPECT_FALSE(libtorch_folder().empty());  // links what registers them
}

}  // namespace
}  // namespace lockstep::device
