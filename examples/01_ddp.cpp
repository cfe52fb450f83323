// Data-parallel training, the program that every PyTorch user knows, in C++. docs/concepts/ddp.md
// sets the Python lines beside these.
//
//   lockstep run --nproc-per-node 4 build/release/bin/01_ddp

#include <torch/torch.h>

#include <lockstep/lockstep.h>

struct ToyModelImpl : torch::nn::Module {
  ToyModelImpl() {
    net1 = register_module("net1", torch::nn::Linear(10, 10));
    net2 = register_module("net2", torch::nn::Linear(10, 5));
  }
  torch::Tensor forward(const torch::Tensor& x) { return net2(torch::relu(net1(x))); }
  torch::nn::Linear net1{nullptr};
  torch::nn::Linear net2{nullptr};
};
TORCH_MODULE(ToyModel);

int main() {
  auto group = lockstep::init();
  torch::manual_seed(group.rank());  // ranks start differently: rank 0's weights win
  ToyModel model;
  lockstep::DistributedDataParallel ddp(model, group);
  torch::optim::SGD optimizer(model->parameters(), 0.01);
  for (int step = 0; step < 20; ++step) {
    optimizer.zero_grad();
    auto outputs = ddp(torch::randn({20, 10}));
    auto labels = torch::randn({20, 5});
    torch::mse_loss(outputs, labels).backward();
    optimizer.step();
  }
  ddp.verify();  // throws if the ranks' models are not equal, bit for bit
  std::cout << "rank " << group.rank() << ": 20 steps, the same model on " << group.size()
            << " ranks" << std::endl;
}
