// CUDA and the plug-in on a real GPU.

#include <filesystem>
#include <limits>
#include <sys/mman.h>

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "base/process/process.h"
#include "device/copies.h"
#include "device/plugin.h"
#include "support/gpu.h"

namespace lockstep::device {
namespace {

using testing_support::gpu;

class Gpu : public ::testing::Test {
 protected:
  void SetUp() override { LOCKSTEP_NEEDS_GPU(); }
};

TEST_F(Gpu, IsTheDeviceOfTheOnlyRank) {
  EXPECT_EQ(local_device(), at::Device(at::kCUDA, 0));
  EXPECT_EQ(at::ones({3}, at::TensorOptions(gpu())).sum().item<float>(), 3.0f);
}

TEST_F(Gpu, HasThePlugIn) {
  ASSERT_NE(plugin(), nullptr) << plugin_state();
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  check_plugin(plugin()->memory(0, &free_bytes, &total_bytes), "memory");
  EXPECT_GT(free_bytes, 0u);
  EXPECT_GE(total_bytes, free_bytes);
}

TEST_F(Gpu, SharedMemoryCanBePinned) {
  ASSERT_NE(plugin(), nullptr) << plugin_state();
  const size_t bytes = 1 << 20;
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(data, MAP_FAILED);
  check_plugin(plugin()->pin(data, bytes), "pin");
  EXPECT_NE(plugin()->pin(data, bytes), nullptr) << "twice";
  check_plugin(plugin()->unpin(data), "unpin");
  munmap(data, bytes);
}

double plugin_squares(const std::vector<at::Tensor>& tensors) {
  std::vector<const void*> data;
  std::vector<int64_t> counts;
  std::vector<int32_t> types;
  for (const at::Tensor& tensor : tensors) {
    data.push_back(tensor.const_data_ptr());
    counts.push_back(tensor.numel());
    types.push_back(tensor.scalar_type() == at::kFloat      ? 0
                    : tensor.scalar_type() == at::kBFloat16 ? 1
                                                            : 2);
  }
  const at::TensorOptions options(gpu());
  const at::Tensor out = at::full({1}, -1.0, options.dtype(at::kDouble));
  const at::Tensor scratch =
      at::empty({static_cast<int64_t>(plugin()->squares_scratch_bytes)}, options.dtype(at::kByte));
  check_plugin(plugin()->sum_of_squares(data.data(), counts.data(), types.data(),
                                        static_cast<int32_t>(tensors.size()),
                                        out.data_ptr<double>(), scratch.data_ptr(), nullptr),
               "sum_of_squares");
  return out.cpu().item<double>();
}

TEST_F(Gpu, SumsOfSquaresAreThoseOfTheCpu) {
  ASSERT_NE(plugin(), nullptr) << plugin_state();
  at::manual_seed(3);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    std::vector<at::Tensor> tensors;
    double expected = 0;
    for (int i = 0; i < 200; ++i) {  // more than one launch takes
      const int64_t numel = i == 7 ? 0 : i == 150 ? 1'000'003 : 17 * i + 1;
      const at::Tensor drawn = at::randn({numel}).to(type);
      expected += drawn.to(at::kDouble).square().sum().item<double>();
      tensors.push_back(drawn.to(gpu()));
    }
    const double sum = plugin_squares(tensors);
    EXPECT_NEAR(sum, expected, expected * 1e-12) << c10::toString(type);
    EXPECT_EQ(sum, plugin_squares(tensors)) << "the same bits every time";
    tensors[150][1'000'002] = std::numeric_limits<float>::infinity();
    EXPECT_FALSE(std::isfinite(plugin_squares(tensors)));
  }
  EXPECT_EQ(plugin_squares({}), 0.0);
}

TEST_F(Gpu, LanesRunBesideTheCallersStream) {
  const auto copies = make_copies(gpu());
  const at::Tensor host = copies->host_memory(4 << 20).view(at::kFloat);
  const at::Tensor x = at::full({1 << 20}, 5.0f, at::TensorOptions(gpu()));
  copies->after(Lane::ToHost, copies->now());
  copies->copy(Lane::ToHost, host, x);
  const MomentPtr copied = copies->reached(Lane::ToHost);
  ASSERT_TRUE(wait_for(*copies, copied, base::Deadline::after(std::chrono::seconds(10))));
  EXPECT_TRUE(host.equal(at::full({1 << 20}, 5.0f)));
  host.fill_(6.0f);
  copies->copy(Lane::ToDevice, x, host);
  copies->current_waits(copies->reached(Lane::ToDevice));
  EXPECT_EQ((x * 1).mean().item<float>(), 6.0f);
}

// Whoever asks libtorch first finds CUDA, since the answer is kept for good.
TEST_F(Gpu, IsFoundByLibtorchsOwnFirstQuestion) {
  const auto folder = std::filesystem::path(base::own_program()).parent_path();
  for (const char* question : {"seed", "available"}) {
    const auto output =
        base::run_process({.argv = {(folder / "first_question").string(), question}},
                          base::Deadline::after(std::chrono::seconds(60)));
    EXPECT_TRUE(output.status.ok()) << question << ": " << output.err;
  }
}

}  // namespace
}  // namespace lockstep::device
