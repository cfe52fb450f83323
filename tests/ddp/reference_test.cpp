// Beside libtorch's own reducer, c10d::Reducer, in the same process and over the same group: the
// same gradients for the same models, inputs and choices.

#include <torch/csrc/distributed/c10d/logger.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include <lockstep/comm/c10d.h>

#include "ddp/nets.h"

namespace lockstep {
namespace {

using testing_support::rank_argument;
using testing_support::run_ranks;

// As PyTorch's DistributedDataParallel uses it.
class Peer {
 public:
  Peer(const Net& net, const Group& group, int64_t bucket_bytes, bool finds_unused)
      : parameters_(net->parameters()),
        reducer_(std::make_shared<c10d::Reducer>(
            parameters_, buckets(parameters_), make_process_group(group),
            std::vector<bool>(parameters_.size(), false), bucket_bytes, finds_unused,
            /*gradient_as_bucket_view=*/true, names(net), bucket_bytes, false, false,
            std::vector<int64_t>{})),
        logger_(std::make_shared<c10d::Logger>(reducer_)) {
    reducer_->set_logger(logger_);  // find_unused_parameters uses it without a look
  }

  void before_forward() {
    if (reducer_->rebuild_buckets()) {
      ++num_rebuilds;
    }
    reducer_->prepare_for_forward();
  }
  void before_backward(const torch::Tensor& output) { reducer_->prepare_for_backward({output}); }

  int num_rebuilds = 0;

 private:
  static std::unordered_map<size_t, std::string> names(const Net& net) {
    std::unordered_map<size_t, std::string> all;
    for (const auto& item : net->named_parameters()) {
      all.emplace(all.size(), item.key());
    }
    return all;
  }
  static std::vector<std::vector<size_t>> buckets(const std::vector<torch::Tensor>& parameters) {
    std::vector<std::vector<size_t>> all;
    for (size_t i = parameters.size(); i-- > 0;) {
      all.push_back({i});
    }
    return all;
  }

  std::vector<torch::Tensor> parameters_;
  std::shared_ptr<c10d::Reducer> reducer_;
  std::shared_ptr<c10d::Logger> logger_;
};

struct Choices {
  bool finds_unused;
  int64_t bucket_bytes;
  bool accumulates;  // gradients are not zeroed between steps
};

// Ten steps of both with inputs from a seed; spare is used or not as the seed says.
void run_beside(Group& group, uint64_t seed, const Choices& choices) {
  Net net = make_net(seed);
  Net peer_net = make_net(seed);
  DistributedDataParallel ddp(
      net, group,
      {.bucket_bytes = choices.bucket_bytes, .find_unused_parameters = choices.finds_unused});
  Peer peer(peer_net, group, choices.bucket_bytes, choices.finds_unused);
  torch::manual_seed(seed * 1000 + static_cast<uint64_t>(group.rank()));
  for (int step = 0; step < 10; ++step) {
    if (!choices.accumulates) {
      net->zero_grad();
      peer_net->zero_grad();
    }
    const torch::Tensor x = torch::randn({kRowsPerRank, 4}, torch::kDouble);
    const bool uses_spare = !choices.finds_unused || torch::randint(2, {1}).item<int64_t>() == 0;
    loss_of(ddp(x, uses_spare)).backward();
    peer.before_forward();
    const torch::Tensor output = loss_of(peer_net(x, uses_spare));
    peer.before_backward(output);
    output.backward();
    const auto theirs = peer_net->named_parameters();
    for (const auto& item : net->named_parameters()) {
      const torch::Tensor expected = theirs[item.key()].grad();
      ASSERT_EQ(item.value().grad().defined(), expected.defined()) << item.key() << " " << step;
      if (expected.defined()) {
        const double error = (item.value().grad() - expected).abs().max().item<double>();
        EXPECT_LE(error, 1e-14) << item.key() << " in step " << step << ", seed " << seed;
      }
    }
  }
  EXPECT_EQ(peer.num_rebuilds, choices.finds_unused ? 0 : 1);
}

TEST(BesideC10dReducer, TheSameGradientsInEveryStep) {
  for (const int world : {1, 2, 3, 4}) {
    for (const char seed : {'1', '2', '3'}) {
      run_ranks(world,
                [](Group& group) {
                  const auto number = static_cast<uint64_t>(rank_argument()[0] - '0');
                  for (const bool finds_unused : {false, true}) {
                    for (const int64_t bucket_bytes : {1, 300, 25 << 20}) {
                      for (const bool accumulates : {false, true}) {
                        run_beside(group, number, {finds_unused, bucket_bytes, accumulates});
                      }
                    }
                  }
                },
                {.argument = std::string(1, seed)});
    }
  }
}

}  // namespace
}  // namespace lockstep
