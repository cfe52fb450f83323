// Ranks with different numbers of batches: whoever has run out takes part in the others' steps, so
// nobody waits for ever.
//
//   lockstep run --nproc-per-node 4 build/release/bin/03_uneven_inputs

#include <torch/torch.h>

#include <lockstep/lockstep.h>

int main() {
  auto group = lockstep::init();
  torch::nn::Linear model(8, 1);
  lockstep::DistributedDataParallel ddp(model, group);
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  torch::manual_seed(group.rank());

  const int num_batches = 5 + 3 * group.rank();
  auto join = ddp.join();
  for (int i = 0; i < num_batches; ++i) {
    const auto input = torch::randn({4, 8});
    optimizer.zero_grad();
    torch::mse_loss(ddp(input), input.sum(1, /*keepdim=*/true)).backward();
    optimizer.step();
  }
  join.wait();  // until all are out of batches; then all hold the model of who trained longest

  ddp.verify();
  std::cout << "rank " << group.rank() << ": " << num_batches
            << " batches of its own, took part in " << ddp.last_step().step << std::endl;
}
