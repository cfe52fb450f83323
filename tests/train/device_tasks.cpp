#include "train/device_tasks.h"

#include <cmath>

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/nn/modules/linear.h>

#include <lockstep/base/error.h>
#include <lockstep/models/bert.h>
#include <lockstep/models/loss.h>
#include <lockstep/models/my_transformer.h>
#include <lockstep/models/resnet.h>

#include "models/small_convnet.h"
#include "train/points.h"

namespace lockstep::test {
namespace {

constexpr int64_t kTrained = 64;
constexpr int64_t kHeldOut = 20;
constexpr int64_t kWords = 61;
constexpr int64_t kLength = 24;
constexpr int64_t kClasses = 3;
constexpr int64_t kSide = 64;  // of a picture

using Forward = std::function<TaskOutput(const Batch& batch)>;

class SmallTask : public TrainingTask {
 public:
  SmallTask(std::shared_ptr<torch::nn::Module> module, Forward forward)
      : module_(std::move(module)), forward_(std::move(forward)) {}
  std::shared_ptr<torch::nn::Module> module() const override { return module_; }
  TaskOutput forward(const Batch& batch) override { return forward_(batch); }

 private:
  std::shared_ptr<torch::nn::Module> module_;
  Forward forward_;
};

struct MlpImpl : torch::nn::Module {
  explicit MlpImpl(double share) : dropout(share) {
    first = register_module("first", torch::nn::Linear(6, 32));
    last = register_module("last", torch::nn::Linear(32, kClasses));
    const at::NoGradGuard no_grad;
    double pace = 0.7;
    for (at::Tensor& parameter : parameters()) {
      const at::Tensor waves = at::arange(parameter.numel(), at::kFloat).mul(pace).sin().mul(0.3);
      parameter.copy_(waves.reshape(parameter.sizes()));
      pace += 0.9;
    }
  }
  at::Tensor forward(const at::Tensor& x) {
    return last(at::dropout(first(x).relu(), dropout, is_training()));
  }
  torch::nn::Linear first{nullptr}, last{nullptr};
  double dropout;
};
TORCH_MODULE(Mlp);

// Of two waves, one fast, so that no statistic of a batch is near 0, where it would magnify what is
// rounded otherwise.
at::Tensor pictures(int64_t num, double shift) {
  const at::Tensor place = at::arange(num * 3 * kSide * kSide, at::kDouble);
  const at::Tensor values = (place * 0.013 + shift).sin() + (place * place * 1.7e-3 + shift).sin();
  return values.add(2).div(4).to(at::kFloat).reshape({num, 3, kSide, kSide});
}

// Sentences whose next word follows from the last one, mostly.
at::Tensor sentences(int64_t num, int64_t shift) {
  const at::Tensor rows = at::arange(num, at::kLong).unsqueeze(1);
  const at::Tensor columns = at::arange(kLength, at::kLong).unsqueeze(0);
  return (rows * 7 + columns * (rows.remainder(3) + 2) + shift).remainder(kWords - 1) + 1;
}

std::shared_ptr<const Dataset> labelled(const at::Tensor& input) {
  return make_dataset(
      {.input = input, .target = at::arange(input.size(0), at::kLong).remainder(kClasses)});
}

// Lengths differ, so that the mask is not all true.
std::shared_ptr<const Dataset> masked_sentences(int64_t num, int64_t shift) {
  const at::Tensor ids = sentences(num, shift);
  const at::Tensor lengths = at::arange(num, at::kLong).remainder(9).add(kLength - 9).unsqueeze(1);
  const at::Tensor mask = at::arange(kLength, at::kLong).unsqueeze(0).lt(lengths);
  return make_dataset({.input = ids * mask,
                       .target = at::arange(num, at::kLong).remainder(kClasses),
                       .more = {{"attention_mask", mask}}});
}

std::shared_ptr<const Dataset> texts(int64_t num, int64_t shift) {
  const at::Tensor ids = sentences(num, shift);
  return make_dataset({.input = ids, .target = ids});
}

template <typename Holder>
std::unique_ptr<TrainingTask> classifier(Holder model) {
  return std::make_unique<SmallTask>(model.ptr(), [net = model.ptr()](const Batch& batch) {
    return classify(net->forward(batch.input), batch.target);
  });
}

SmallRun small_transformer(double dropout) {
  const MyTransformer model(MyTransformerOptions{.vocab_size = kWords,
                                                 .hidden_size = 32,
                                                 .num_layers = 2,
                                                 .num_heads = 4,
                                                 .ffn_size = 64,
                                                 .max_positions = kLength,
                                                 .dropout = dropout});
  const auto forward = [net = model.ptr()](const Batch& batch) {
    return TaskOutput{.loss = next_token_loss(net->forward(batch.input), batch.target),
                      .num_counted = batch.target.size(0) * (kLength - 1)};
  };
  return {std::make_unique<SmallTask>(model.ptr(), forward),
          {.train = texts(kTrained, 0), .held_out = texts(kHeldOut, 5)}};
}

SmallRun small_bert(double dropout) {
  const BertForSequenceClassification model(BertOptions{.vocab_size = kWords,
                                                        .hidden_size = 32,
                                                        .num_layers = 2,
                                                        .num_heads = 4,
                                                        .ffn_size = 64,
                                                        .max_positions = kLength,
                                                        .num_labels = kClasses,
                                                        .hidden_dropout = dropout,
                                                        .attention_dropout = dropout});
  const auto forward = [net = model.ptr()](const Batch& batch) {
    return classify(net->forward({.ids_BT = batch.input,
                                  .attention_mask_BT = batch["attention_mask"],
                                  .token_types_BT = {}}),
                    batch.target);
  };
  return {std::make_unique<SmallTask>(model.ptr(), forward),
          {.train = masked_sentences(kTrained, 0), .held_out = masked_sentences(kHeldOut, 5)}};
}

}  // namespace

SmallRun make_small_run(const std::string& model, double dropout) {
  if (model == "mlp") {
    return {classifier(Mlp(dropout)),
            {.train = points(kTrained, 0), .held_out = points(kHeldOut, 0.5)}};
  }
  if (model == "mytransformer") {
    return small_transformer(dropout);
  }
  if (model == "bert") {
    return small_bert(dropout);
  }
  const TrainerData data{.train = labelled(pictures(kTrained, 0)),
                         .held_out = labelled(pictures(kHeldOut, 0.3))};
  if (model == "convnet") {
    return {classifier(models::SmallConvnet(models::SmallConvnetOptions{
                .picture_size = kSide, .in_channels = 3, .num_classes = kClasses, .seed = 42})),
            data};
  }
  LOCKSTEP_CHECK(model == "resnet", "there is no small run of a {}", model);
  return {classifier(
              ResNet(ResNetOptions{.blocks = {1, 1, 1, 1}, .width = 8, .num_classes = kClasses})),
          data};
}

std::string Trained::state() const {
  return fmt::format("{:016x} {} {:a} {}", result.parameter_hashes.front(), result.steps,
                     result.evaluation->loss, result.evaluation->num_correct);
}

Trained train_small(const std::string& model, const TrainerOptions& options, Group group,
                    double dropout) {
  const SmallRun run = make_small_run(model, dropout);
  Trained trained;
  const TrainWatcher watcher{
      .on_step = [&](const StepReport& report) { trained.losses.push_back(report.loss); }};
  Trainer trainer(*run.task, run.data, std::move(group), options, watcher);
  trained.device = trainer.device();
  trained.result = trainer.run();
  return trained;
}

TrainerOptions small_options(TrainDevice device, int64_t epochs) {
  TrainerOptions options{.epochs = epochs, .batch_size = 8, .device = device, .seed = 3};
  options.optimizer = OptimizerKind::Sgd;
  options.lr = 0.01;
  options.momentum = 0;
  options.weight_decay = 0;
  options.schedule = Schedule::Constant;
  options.clip_norm = 0;
  options.log_every = 1;
  options.workers = 1;
  return options;
}

double largest_difference(const std::vector<double>& found, const std::vector<double>& expected) {
  double largest = found.size() == expected.size() && !found.empty() ? 0 : HUGE_VAL;
  for (size_t i = 0; i < std::min(found.size(), expected.size()); ++i) {
    const double difference = std::abs(found[i] - expected[i]) / std::abs(expected[i]);
    largest = std::isfinite(difference) ? std::max(largest, difference) : HUGE_VAL;
  }
  return largest;
}

}  // namespace lockstep::test
