// A batch too large for memory: four small ones, one synchronisation.
//
//   lockstep run --nproc-per-node 2 build/release/bin/02_gradient_accumulation

#include <torch/torch.h>

#include <lockstep/lockstep.h>

int main() {
  auto group = lockstep::init();
  torch::manual_seed(1);
  torch::nn::Linear model(16, 4);
  lockstep::DistributedDataParallel ddp(model, group);
  torch::manual_seed(2 + group.rank());
  const auto batch = torch::randn({32, 16});
  const auto micro_batches = batch.chunk(4);
  const auto loss_of = [](const torch::Tensor& output) { return output.pow(2).mean(); };

  // In small pieces: all but the last only add up on this rank.
  for (size_t i = 0; i + 1 < micro_batches.size(); ++i) {
    auto guard = ddp.no_sync();
    (loss_of(ddp(micro_batches[i])) / 4).backward();
  }
  (loss_of(ddp(micro_batches.back())) / 4).backward();  // averages all four
  const auto in_pieces = model->weight.grad().clone();

  // At once.
  model->zero_grad();
  loss_of(ddp(batch)).backward();
  const bool agrees = in_pieces.allclose(model->weight.grad());

  std::cout << "rank " << group.rank() << ": 4 micro-batches and 1 synchronisation "
            << (agrees ? "give" : "do NOT give") << " the gradient of the whole batch" << std::endl;
  return agrees ? 0 : 1;
}
