// A batch with a tensor more than two, and an optimizer of one's own in lockstep::Trainer: Adagrad
// with a slower group. Checkpoints hold its state too: kill it and start it again.
//
//   lockstep run --nproc-per-node 2 build/release/bin/07_own_optimizer runs/line

#include <torch/torch.h>

#include <lockstep/lockstep.h>

// A line through points of which some are wrong; their weight is 0.
class Line : public lockstep::TrainingTask {
 public:
  std::shared_ptr<torch::nn::Module> module() const override { return line.ptr(); }
  lockstep::TaskOutput forward(const lockstep::Batch& batch) override {
    auto error = (line(batch.input) - batch.target).square();
    return {.loss = (error * batch["weight"]).mean()};
  }

  torch::nn::Linear line{2, 1};
};

std::shared_ptr<const lockstep::Dataset> points(int64_t num) {
  auto number = torch::arange(num, torch::kFloat);
  auto input = torch::stack({torch::sin(number * 1.7), torch::cos(number * 0.9)}, 1);
  auto target = input.matmul(torch::tensor({3.0f, -2.0f})).add(0.5).unsqueeze(1);
  auto is_wrong = number.remainder(4).eq(0).unsqueeze(1);
  return lockstep::make_dataset({.input = input,
                                 .target = target.masked_fill(is_wrong, 100),
                                 .more = {{"weight", is_wrong.logical_not().to(torch::kFloat)}}});
}

// What is given is the module on the device on which it is trained.
std::unique_ptr<torch::optim::Optimizer> make_optimizer(torch::nn::Module& module) {
  auto parameters = module.named_parameters();
  using Options = torch::optim::AdagradOptions;
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(std::vector{parameters["weight"]}, std::make_unique<Options>(1.0));
  groups.emplace_back(std::vector{parameters["bias"]}, std::make_unique<Options>(0.2));
  return std::make_unique<torch::optim::Adagrad>(groups);
}

int main(int argc, char** argv) {
  auto group = lockstep::init();
  torch::manual_seed(1);
  Line task;
  lockstep::Trainer trainer(task, {.train = points(512), .held_out = nullptr}, group,
                            {.epochs = 20,
                             .batch_size = 32,
                             .make_optimizer = make_optimizer,
                             .clip_norm = 0,
                             .checkpoint_dir = argc > 1 ? argv[1] : ""});
  const auto result = trainer.run();
  auto slopes = task.line->weight.detach().flatten();
  std::cout << "rank " << group.rank() << ": " << result.steps << " steps, the line "
            << (slopes.allclose(torch::tensor({3.0f, -2.0f}), 0, 0.05) ? "is found"
                                                                       : "is not found")
            << " (" << slopes[0].item<float>() << ", " << slopes[1].item<float>() << "), "
            << (result.same_bits() ? "the same" : "another") << " model on all ranks" << std::endl;
}
