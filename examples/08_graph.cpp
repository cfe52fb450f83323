// A whole step of a model of one's own as one CUDA graph: the host queues one thing a step, where
// it would queue an operation at a time. On a machine without a GPU the log says that there is no
// graph, and the result is that of the same steps.
//
//   lockstep run --nproc-per-node 1 build/release/bin/08_graph

#include <torch/torch.h>

#include <lockstep/lockstep.h>

// A narrow, deep net: hundreds of small operations, for which a GPU waits.
struct DeepImpl : torch::nn::Module {
  DeepImpl() {
    for (int i = 0; i < 12; ++i) {
      layers->push_back(torch::nn::Linear(i == 0 ? 2 : 32, 32));
    }
    register_module("layers", layers);
    decide = register_module("decide", torch::nn::Linear(32, 2));
    dropout = register_module("dropout", torch::nn::Dropout(0.05));
  }
  torch::Tensor forward(torch::Tensor x) {
    for (const auto& layer : *layers) {
      const auto next = torch::relu(layer->as<torch::nn::Linear>()->forward(x));
      x = next.sizes() == x.sizes() ? x + dropout(next) : next;
    }
    return decide(x);
  }
  torch::nn::ModuleList layers;
  torch::nn::Linear decide{nullptr};
  torch::nn::Dropout dropout{nullptr};
};
TORCH_MODULE(Deep);

// What forward() does must be all tensor operations on the batch's device: a replay repeats them,
// and calls nothing of this class. So losses are not read here: the trainer reports them.
class Rings : public lockstep::TrainingTask {
 public:
  std::shared_ptr<torch::nn::Module> module() const override { return net_.ptr(); }
  lockstep::TaskOutput forward(const lockstep::Batch& batch) override {
    num_calls += net_->is_training() ? 1 : 0;
    return lockstep::classify(net_(batch.input), batch.target);
  }
  int64_t num_calls = 0;

 private:
  Deep net_;
};

std::shared_ptr<const lockstep::Dataset> points(int64_t num, double offset) {
  auto angle = torch::arange(num, torch::kDouble) * 2.39996 + offset;
  auto ring = torch::arange(num).remainder(2);
  auto radius = 1.0 + ring.to(torch::kDouble) + 0.2 * torch::sin(angle * 7);
  auto input = torch::stack({radius * torch::cos(angle), radius * torch::sin(angle)}, 1);
  return lockstep::make_dataset({input.to(torch::kFloat), ring});
}

int main() {
  auto group = lockstep::init();
  torch::manual_seed(1);
  Rings task;
  lockstep::Trainer trainer(
      task, {.train = points(1024, 0), .held_out = points(256, 0.1)}, group,
      {.epochs = 10, .batch_size = 64, .graph = lockstep::TrainGraph::Auto, .lr = 0.005});
  const auto result = trainer.run();
  std::cout << "rank " << group.rank() << ": " << result.steps << " steps with " << task.num_calls
            << " calls of forward() to train, "
            << (result.evaluation->accuracy() > 0.9 ? "it learned" : "it did not") << std::endl;
}
