// What a step sends. An average of averages is the average, so that the gradients do not show
// whether they were sent twice.

#include <algorithm>

#include <lockstep/comm/group.h>

#include "ddp/nets.h"

namespace lockstep {
namespace {

using testing_support::rank_argument;
using testing_support::run_ranks;

constexpr int64_t kVerdictNumbers = 5;     // which all ranks exchange at the end of a step
constexpr int64_t kSmallestBucket = 8000;  // bytes; gradients that begin at a cache line add fewer

// Three layers whose gradients are 32 KB each.
struct LayersImpl : torch::nn::Module {
  LayersImpl() {
    first = register_module("first", layer(4, 1024));
    second = register_module("second", layer(1024, 4));
    third = register_module("third", layer(4, 1024));
    to(torch::kDouble);
  }
  static torch::nn::Linear layer(int64_t inputs, int64_t outputs) {
    return torch::nn::Linear(torch::nn::LinearOptions(inputs, outputs).bias(false));
  }
  torch::Tensor forward(const torch::Tensor& x) { return third(second(first(x))); }
  torch::nn::Linear first{nullptr}, second{nullptr}, third{nullptr};
};
TORCH_MODULE(Layers);

uint64_t sent(const Group& group) {
  return group.traffic().network_bytes_sent;
}

// Argument: "overlap", or anything else.
void expect_each_bucket_once(Group& group) {
  torch::manual_seed(1);
  Layers net;
  DistributedDataParallel ddp(
      net, group,
      {.bucket_bytes = kSmallestBucket,
       .first_bucket_bytes = kSmallestBucket,
       .overlap = rank_argument() == "overlap" ? Overlap::Always : Overlap::Never,
       .broadcast_buffers = false});
  const auto step = [&](int number) {
    net->zero_grad();
    loss_of(ddp(rows_of(whole_batch(group.size(), number), group.rank()))).backward();
  };
  step(0);
  step(1);  // in the buckets of the first step's order
  const uint64_t before = sent(group);
  step(2);
  const uint64_t by_step = sent(group) - before;

  const std::vector<int64_t> sizes = ddp.bucket_sizes_bytes();
  ASSERT_EQ(sizes.size(), 3u);
  ASSERT_GE(*std::min_element(sizes.begin(), sizes.end()), kSmallestBucket);
  const uint64_t before_hand = sent(group);
  for (const int64_t bytes : sizes) {
    at::Tensor bucket = at::ones({bytes / 8}, at::kDouble);
    group.all_reduce(bucket, {.op = ReduceOp::Average});
  }
  at::Tensor verdict = at::zeros({kVerdictNumbers}, at::kLong);
  group.all_reduce(verdict, {.op = ReduceOp::Max});
  const uint64_t by_hand = sent(group) - before_hand;
  EXPECT_GT(by_hand, 0u);
  EXPECT_GE(by_step, by_hand);
  EXPECT_LT(by_step, by_hand + kSmallestBucket / 4);  // half of a bucket passes through each rank
}

TEST(DdpTraffic, EachBucketIsSentOnceAStep) {
  for (const char* argument : {"overlap", "no overlap"}) {
    SCOPED_TRACE(argument);
    run_ranks(4, expect_each_bucket_once,
              {.nodes = 2, .backend = BackendChoice::Hierarchical, .argument = argument});
  }
}

}  // namespace
}  // namespace lockstep
