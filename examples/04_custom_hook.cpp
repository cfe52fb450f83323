// A communication hook of one's own: every rank votes on the sign of each gradient, and only the
// votes travel (signSGD with majority vote, Bernstein et al. 2018): a quarter of the bytes.
//
//   lockstep run --nproc-per-node 4 build/release/bin/04_custom_hook

#include <map>

#include <torch/torch.h>

#include <lockstep/lockstep.h>

class MajorityVote : public lockstep::CommHook {
 public:
  lockstep::Work start(const lockstep::GradBucket& bucket, lockstep::Group& group) override {
    bytes_of_gradients += static_cast<int64_t>(bucket.buffer.nbytes());
    auto& votes = votes_[bucket.index];
    votes = bucket.buffer.sign().to(torch::kChar);  // one byte each; up to 127 ranks
    bytes_sent += static_cast<int64_t>(votes.nbytes());
    return group.all_reduce_async(votes);  // the sum of the votes
  }

  void finish(const lockstep::GradBucket& bucket, lockstep::Group& /*group*/) override {
    auto gradients = bucket.buffer;
    gradients.copy_(votes_[bucket.index].sign());
  }

  int64_t bytes_of_gradients = 0;
  int64_t bytes_sent = 0;

 private:
  std::map<size_t, torch::Tensor> votes_;  // by bucket
};

int main() {
  auto group = lockstep::init();
  torch::manual_seed(group.rank());
  torch::nn::Sequential model(torch::nn::Linear(8, 32), torch::nn::ReLU(),
                              torch::nn::Linear(32, 1));
  auto hook = std::make_shared<MajorityVote>();
  lockstep::DistributedDataParallel ddp(model, group, {.comm_hook = hook});
  torch::optim::SGD optimizer(model->parameters(), 0.002);
  const auto step = [&] {
    const auto input = torch::randn({16, 8});
    optimizer.zero_grad();
    auto loss = torch::mse_loss(ddp(input), input.sum(1, /*keepdim=*/true));
    loss.backward();
    optimizer.step();
    return loss.item<float>();
  };
  const float first = step();
  float last = first;
  for (int i = 0; i < 300; ++i) {
    last = step();
  }
  ddp.verify();
  std::cout << "rank " << group.rank() << ": loss " << (last < first / 4 ? "fell" : "did NOT fall")
            << " with 1/" << hook->bytes_of_gradients / hook->bytes_sent << " of the bytes"
            << std::endl;
  return last < first / 4 ? 0 : 1;
}
