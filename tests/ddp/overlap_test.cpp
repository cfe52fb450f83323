// Communication beside computation: a bucket is reduced while backward still has gradients to make.

#include <chrono>
#include <functional>
#include <thread>

#include "ddp/nets.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using testing_support::run_ranks;

// What backward passes on its way from one layer to the one before.
struct Gate : torch::autograd::Function<Gate> {
  static torch::Tensor forward(torch::autograd::AutogradContext* /*context*/,
                               const torch::Tensor& x) {
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* /*context*/,
                                                 torch::autograd::variable_list gradients) {
    at_gate();
    return gradients;
  }
  inline static std::function<void()> at_gate;
};

struct GatedImpl : torch::nn::Module {
  GatedImpl() {
    first = register_module("first", torch::nn::Linear(torch::nn::LinearOptions(4, 4).bias(false)));
    second =
        register_module("second", torch::nn::Linear(torch::nn::LinearOptions(4, 2).bias(false)));
    to(torch::kDouble);
  }
  torch::Tensor forward(const torch::Tensor& x) { return second(Gate::apply(first(x))); }
  torch::nn::Linear first{nullptr};
  torch::nn::Linear second{nullptr};
};
TORCH_MODULE(Gated);

// Each rank holds its backward up between the two layers until the later one's gradient is the
// average over all ranks, which none of them can know alone.
TEST(DdpOverlap, ABucketIsReducedBeforeTheLastGradientIsMade) {
  run_ranks(3, [](Group& group) {
    torch::manual_seed(3);
    Gated model;
    DistributedDataParallel ddp(
        model, group, {.bucket_bytes = 64, .first_bucket_bytes = 64, .overlap = Overlap::Always});
    const auto backward = [&] {
      model->zero_grad();
      loss_of(ddp(rows_of(whole_batch(3), group.rank()))).backward();
    };
    Gate::at_gate = [] {};
    backward();
    ASSERT_GT(ddp.bucket_sizes_bytes().size(), 1u);
    const torch::Tensor first = model->first->weight.grad().clone();
    const torch::Tensor second = model->second->weight.grad().clone();
    bool is_reduced_in_time = false;
    Gate::at_gate = [&] {
      const auto give_up = std::chrono::steady_clock::now() + 20s;
      do {
        const torch::Tensor& gradient = model->second->weight.grad();
        is_reduced_in_time = gradient.defined() && gradient.equal(second);
        std::this_thread::sleep_for(1ms);
      } while (!is_reduced_in_time && std::chrono::steady_clock::now() < give_up);
    };
    backward();
    Gate::at_gate = nullptr;
    EXPECT_TRUE(is_reduced_in_time);
    EXPECT_TRUE(model->first->weight.grad().equal(first));
    EXPECT_TRUE(model->second->weight.grad().equal(second));
  });
}

}  // namespace
}  // namespace lockstep
