// The models on a GPU: with the plug-in's kernels, and with libtorch's operators.

#include <cstdlib>
#include <functional>

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <lockstep/models/gpt2.h>
#include <lockstep/models/loss.h>

#include "device/kernels.h"
#include "device/plugin.h"
#include "fused_models.h"
#include "support/gpu.h"

namespace lockstep {
namespace {

using device::FunctionsUse;
using testing_support::difference_of;
using testing_support::gpu;
using testing_support::kLanguageModels;
using testing_support::kPictureModels;
using testing_support::StepDifference;
using testing_support::StepResult;
using testing_support::take_step;

// cuBLAS reads it once.
[[maybe_unused]] const int is_set = ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", 0);

class CudaFusedModel : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    LOCKSTEP_NEEDS_GPU();
    ASSERT_NE(device::cuda_kernels(), nullptr) << device::plugin_state();
    at::globalContext().setAllowTF32CuDNN(false);  // would hide a mistake
  }
  void TearDown() override { at::globalContext().setAllowTF32CuDNN(true); }
};

TEST_P(CudaFusedModel, TakesTheStepOfItsOperators) {
  const StepResult fused = take_step(GetParam(), {.device = gpu()});
  const StepResult plain = take_step(GetParam(), {.use = FunctionsUse::Nowhere, .device = gpu()});
  const StepDifference difference = difference_of(fused, plain);
  EXPECT_LT(difference.loss, 1e-5) << fused.loss << " and " << plain.loss;
  EXPECT_LT(difference.gradient, 2e-4) << difference.where;
  EXPECT_LT(difference.buffer, 1e-5) << difference.where;
  EXPECT_LT(difference.parameter, 5e-5) << difference.where;
  fmt::print("{:>32}: gradients differ by at most {:.1e}\n", GetParam(), difference.gradient);
}

TEST_P(CudaFusedModel, TakesTheStepOfItsOperatorsInBfloat16) {
  const StepResult exact = take_step(GetParam(), {.use = FunctionsUse::Nowhere, .device = gpu()});
  const StepResult fused = take_step(GetParam(), {.device = gpu(), .bfloat16 = true});
  const StepResult plain =
      take_step(GetParam(), {.use = FunctionsUse::Nowhere, .device = gpu(), .bfloat16 = true});
  const StepDifference of_fused = difference_of(fused, exact);
  const StepDifference of_plain = difference_of(plain, exact);
  EXPECT_LT(of_fused.loss, 3 * of_plain.loss + 0.02);
  EXPECT_LT(of_fused.gradient, 3 * of_plain.gradient + 0.05) << of_fused.where;
  EXPECT_LT(of_fused.buffer, 3 * of_plain.buffer + 0.02) << of_fused.where;
  fmt::print("{:>32}: gradients differ from float32's by {:.3f}, the operators' by {:.3f}\n",
             GetParam(), of_fused.gradient, of_plain.gradient);
}

TEST_P(CudaFusedModel, IsTheSameBitsAgainAndThoseOfTheTwins) {
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);  // libtorch's own
  const testing_support::StepOptions options{.device = gpu(), .dropout = 0.2, .seed = 9};
  const StepResult first = take_step(GetParam(), options);
  const StepResult again = take_step(GetParam(), options);
  if (!std::string(GetParam()).starts_with("resnet")) {  // cuDNN's convolutions need not be
    EXPECT_EQ(first.loss, again.loss);
    EXPECT_EQ(difference_of(first, again).gradient, 0) << difference_of(first, again).where;
  }
  at::globalContext().setDeterministicAlgorithms(false, false);
  const StepResult twins = take_step(GetParam(), {.use = FunctionsUse::Everywhere});
  const StepResult kernels = take_step(GetParam(), {.device = gpu()});
  EXPECT_LT(difference_of(kernels, twins).gradient, 5e-4);
}

std::string name_of(const testing::TestParamInfo<const char*>& info) {
  return info.param;
}

INSTANTIATE_TEST_SUITE_P(Language, CudaFusedModel, testing::ValuesIn(kLanguageModels), name_of);
INSTANTIATE_TEST_SUITE_P(Pictures, CudaFusedModel, testing::ValuesIn(kPictureModels), name_of);

// The kernels are queued on the stream that is current, forward and backward.
TEST(CudaFused, WorkOnTheCurrentStream) {
  LOCKSTEP_NEEDS_GPU();
  const c10::impl::VirtualGuardImpl runtime(at::kCUDA);
  const StepResult expected = take_step("gpt2", {.device = gpu()});
  const c10::StreamGuard guard(runtime.getStreamFromGlobalPool(gpu()));
  const StepResult found = take_step("gpt2", {.device = gpu()});
  EXPECT_NEAR(found.loss, expected.loss, 1e-6);
  EXPECT_LT(difference_of(found, expected).gradient, 1e-5);
}

// The logits of a real vocabulary are neither copied nor kept in float32.
TEST(CudaFused, ALossOfManyWordsNeedsTheMemoryOfItsLogits) {
  LOCKSTEP_NEEDS_GPU();
  const at::TensorOptions on_gpu(gpu());
  const at::Tensor hidden = at::randn({2, 1024, 64}, on_gpu).to(at::kBFloat16).requires_grad_();
  const at::Tensor weight = at::randn({50257, 64}, on_gpu).requires_grad_();
  const at::Tensor ids = at::randint(0, 50257, {2, 1024}, on_gpu.dtype(at::kLong));
  const auto most_bytes = [&](const std::function<void()>& work) {
    auto* allocator = c10::getDeviceAllocator(at::kCUDA);
    allocator->emptyCache();
    allocator->resetPeakStats(0);
    const auto before = allocator->getDeviceStats(0).allocated_bytes[0].current;
    work();
    return allocator->getDeviceStats(0).allocated_bytes[0].peak - before;
  };
  const auto work = [&] {
    at::Tensor logits = device::vocabulary_linear(
        {.x = hidden, .weight = weight, .bias = {}, .type = at::kBFloat16});
    next_token_loss(std::move(logits), ids).backward();
  };
  work();  // cuBLAS takes its memory
  constexpr int64_t kLogitsBytes = 2 * 1024 * 50304 * 2;
  EXPECT_LT(most_bytes(work), kLogitsBytes * 3 / 2);
  EXPECT_TRUE(weight.grad().isfinite().all().item<bool>());
}

}  // namespace
}  // namespace lockstep
