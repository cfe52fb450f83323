#pragma once

// Cases with one body for two places: a GPU, which all ranks share, and CPU tensors that take the
// path of a GPU's, so that most of what holds there is tested where there is none.
//
// Example:
//   TEST_P(DdpOnDevice, DoesSomething) {
//     run(2, [](Group& group, at::Device device) {
//       Net net = make_net_on(device);
//     });
//   }

#include <optional>
#include <string>
#include <string_view>

#include <torch/cuda.h>

#include "ddp/device/device_path.h"
#include "ddp/nets.h"
#include "support/service.h"

namespace lockstep {

class OnDevice : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!is_cpu()) {
      LOCKSTEP_NEEDS("device", no_device());
    }
  }

  bool is_cpu() const { return std::string_view(GetParam()) == "cpu"; }

  // Runs body(group, device) on ranks.
  template <typename Body>
  void run(int world, Body /*captures nothing*/) {
    testing_support::run_ranks(world,
                               [](Group& group) {
                                 const at::Device device(testing_support::rank_argument());
                                 std::optional<ddp::DevicePathOnCpu> path;
                                 if (device.is_cpu()) {
                                   path.emplace();
                                 }
                                 Body{}(group, device);
                               },
                               {.argument = GetParam(), .limit = std::chrono::seconds(180)});
  }

 private:
  static std::optional<std::string> no_device() {
    return torch::cuda::is_available()
               ? std::nullopt
               : std::optional<std::string>("libtorch sees no GPU (torch::cuda::is_available)");
  }
};

inline std::string place_name(const ::testing::TestParamInfo<const char*>& place) {
  return std::string_view(place.param) == "cpu" ? "cpu" : "cuda";
}

// On/<Suite>.<Case>/cpu and /cuda.
#define LOCKSTEP_ON_DEVICE(Suite) \
  INSTANTIATE_TEST_SUITE_P(On, Suite, ::testing::Values("cpu", "cuda:0"), place_name)

inline Net make_net_on(at::Device device, uint64_t seed = 1, int64_t width = kSmallWidth) {
  Net net = make_net(seed, width);
  net->to(device);
  return net;
}

inline torch::Tensor batch_on(at::Device device, int num_parts, int step = 0) {
  return whole_batch(num_parts, step).to(device);
}

// By way of the host, so that a failure is not one of the collective that compares.
inline bool same_everywhere(Group& group, const at::Tensor& tensor) {
  return same_on_all_ranks(group, tensor.detach().cpu());
}

template <typename Model>
void expect_same_everywhere(Group& group, Model& model) {
  for (const auto& item : model->named_parameters()) {
    EXPECT_TRUE(same_everywhere(group, item.value())) << item.key() << " on rank " << group.rank();
  }
}

// As expect_close() of two models, with the largest difference.
inline void expect_close_tensors(const at::Tensor& found, const at::Tensor& expected,
                                 const std::string& what, double tolerance = 1e-9) {
  ASSERT_EQ(found.defined(), expected.defined()) << what;
  if (!found.defined() || found.numel() == 0) {
    return;
  }
  ASSERT_EQ(found.sizes(), expected.sizes()) << what;
  const at::Tensor difference =
      (found.detach().to(at::kDouble) - expected.detach().to(found.device(), at::kDouble)).abs();
  const double largest = difference.max().item<double>();
  EXPECT_LE(largest, tolerance * (1 + expected.abs().max().item<double>()))
      << what << ": differs by up to " << largest;
}

template <typename A, typename B>
void expect_close_models(A& found, B& expected, const std::string& what, double tolerance = 1e-9) {
  const auto theirs = expected->named_parameters();
  for (const auto& item : found->named_parameters()) {
    expect_close_tensors(item.value(), theirs[item.key()], what + ", " + item.key(), tolerance);
  }
}

}  // namespace lockstep
