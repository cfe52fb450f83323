// A model and a loss of one's own, and lockstep::Trainer for all the rest: order of the data,
// schedule, evaluation, checkpoints. Kill it and start it again with the same line: it goes on.
//
//   lockstep run --nproc-per-node 2 build/release/bin/06_trainer runs/rings

#include <torch/torch.h>

#include <lockstep/lockstep.h>

// Two rings, one inside the other; which one is a point on?
struct NetImpl : torch::nn::Module {
  NetImpl() {
    hidden = register_module("hidden", torch::nn::Linear(2, 32));
    decide = register_module("decide", torch::nn::Linear(32, 2));
  }
  torch::Tensor forward(torch::Tensor x) { return decide(torch::relu(hidden(x))); }
  torch::nn::Linear hidden{nullptr}, decide{nullptr};
};
TORCH_MODULE(Net);

class Rings : public lockstep::TrainingTask {
 public:
  std::shared_ptr<torch::nn::Module> module() const override { return net_.ptr(); }
  lockstep::TaskOutput forward(const lockstep::Batch& batch) override {
    return lockstep::classify(net_(batch.input), batch.target);
  }

 private:
  Net net_;
};

std::shared_ptr<const lockstep::Dataset> points(int64_t num, double offset) {
  auto angle = torch::arange(num, torch::kDouble) * 2.39996 + offset;
  auto ring = torch::arange(num).remainder(2);
  auto radius = 1.0 + ring.to(torch::kDouble) + 0.2 * torch::sin(angle * 7);
  auto input = torch::stack({radius * torch::cos(angle), radius * torch::sin(angle)}, 1);
  return lockstep::make_dataset({input.to(torch::kFloat), ring});
}

int main(int argc, char** argv) {
  auto group = lockstep::init();
  Rings task;
  lockstep::Trainer trainer(
      task, {.train = points(1024, 0), .held_out = points(256, 0.1)}, group,
      {.epochs = 10, .batch_size = 64, .lr = 0.02, .checkpoint_dir = argc > 1 ? argv[1] : ""});
  const auto result = trainer.run();
  std::cout << "rank " << group.rank() << ": " << result.steps << " steps, "
            << (result.evaluation->accuracy() > 0.95 ? "it learned" : "it did not") << " ("
            << 100 * result.evaluation->accuracy() << " % of " << result.evaluation->num_counted
            << "), " << (result.same_bits() ? "the same" : "another") << " model on all ranks"
            << std::endl;
}
