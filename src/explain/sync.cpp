// `sync`: the same training on four ranks, once each for itself and once with averaged gradients.

#include <functional>
#include <set>

#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/torch.h>

#include <lockstep/ddp/distributed_data_parallel.h>

#include "explain/gather.h"
#include "explain/lesson.h"

namespace lockstep::explain {
namespace {

// Shapes: P pictures, F features (ear, whisker, eye), S moments that are shown.
constexpr int64_t kPicturesPerRank = 25;
constexpr int64_t kSyncInputs = 3;
const std::vector<double> kStart = {0.5, 0.3, 0.2};
const std::vector<double> kTruth = {3.0, -2.0, 1.5};  // what makes a cat; no rank knows it
constexpr double kSyncLr = 1.0;
const std::vector<int64_t> kShownSteps = {0, 1, 5, 10, 20, 40};

// How strongly each feature varies in a rank's pictures.
const Rows kRegions = {{2.0, 0.2, 0.2}, {0.2, 2.0, 0.2}, {0.2, 0.2, 2.0}, {0.3, 0.3, 0.3}};

struct Pictures {
  at::Tensor input_PF;
  at::Tensor target_P;  // 1: a cat
};

Pictures draw_pictures(int rank) {
  const at::Generator generator = at::detail::createCPUGenerator(static_cast<uint64_t>(rank) + 1);
  const at::Tensor input_PF =
      torch::randn({kPicturesPerRank, kSyncInputs}, generator, torch::kFloat64) *
      as_tensor(kRegions[rank]);
  const at::Tensor target_P = (input_PF.matmul(as_tensor(kTruth)) > 0).to(torch::kFloat64);
  return {input_PF, target_P};
}

Pictures gather_pictures(Group& group, const Pictures& mine) {
  return {gather(group, mine.input_PF).flatten(0, 1), gather(group, mine.target_P).flatten()};
}

torch::nn::Linear make_model() {
  torch::nn::Linear model(torch::nn::LinearOptions(kSyncInputs, 1).bias(false));
  model->to(torch::kFloat64);
  torch::NoGradGuard no_grad;
  model->weight.copy_(as_tensor(kStart).unsqueeze(0));
  return model;
}

at::Tensor loss_of(const at::Tensor& logits_P1, const Pictures& pictures) {
  return torch::binary_cross_entropy_with_logits(logits_P1.squeeze(1), pictures.target_P);
}

// Trains and returns the weights at the moments that are shown, the last of them at the end.
at::Tensor train(torch::nn::Linear model, const Pictures& pictures,
                 const std::function<at::Tensor(const at::Tensor&)>& forward) {
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(kSyncLr));
  std::vector<at::Tensor> shown;
  for (int64_t step = 0; step <= kShownSteps.back(); ++step) {
    if (kShownSteps[shown.size()] == step) {
      shown.push_back(model->weight.detach().clone().squeeze(0));
    }
    if (step < kShownSteps.back()) {
      optimizer.zero_grad();
      loss_of(forward(pictures.input_PF), pictures).backward();
      optimizer.step();
    }
  }
  return torch::stack(shown);
}

// What one way of training left on the ranks.
struct Outcome {
  std::vector<Rows> path;  // [rank][moment][feature]
  Rows weights;            // at the end
  std::vector<double> losses;
  bool same = false;

  size_t num_models() const {
    return std::set<std::vector<double>>(weights.begin(), weights.end()).size();
  }
};

Outcome collect(Group& group, const at::Tensor& path_SF, const Pictures& everything) {
  const at::Tensor final_F = path_SF[-1];
  const at::Tensor logits_P1 = everything.input_PF.matmul(final_F.unsqueeze(1));
  const at::Tensor weights = gather(group, final_F);
  Outcome outcome{.weights = as_rows(weights),
                  .losses = as_vector(gather(group, loss_of(logits_P1, everything))),
                  .same = same_bits(weights)};
  const at::Tensor paths = gather(group, path_SF);
  for (int64_t rank = 0; rank < group.size(); ++rank) {
    outcome.path.push_back(as_rows(paths[rank]));
  }
  return outcome;
}

Table path_table(const Speaker& say, const Outcome& outcome) {
  Table table{.header = {say("step")}};
  for (size_t rank = 0; rank < outcome.path.size(); ++rank) {
    table.header.push_back(say("rank_number", rank));
  }
  for (size_t moment = 0; moment < kShownSteps.size(); ++moment) {
    table.rows.push_back({std::to_string(kShownSteps[moment])});
    for (const auto& rank_path : outcome.path) {
      std::vector<std::string> weights;
      for (const double weight : rank_path[moment]) {
        weights.push_back(fmt::format("{:5.2f}", weight));
      }
      table.rows.back().push_back(fmt::format("{}", fmt::join(weights, " ")));
    }
  }
  return table;
}

Table loss_table(const Speaker& say, const Outcome& apart, const Outcome& together) {
  Rows rows;
  for (size_t rank = 0; rank < apart.losses.size(); ++rank) {
    rows.push_back({apart.losses[rank], together.losses[rank]});
  }
  return rank_table(say("rank"), {say("without"), say("with")}, rows);
}

nlohmann::ordered_json path_data(const Outcome& apart, const Outcome& together) {
  return {{"steps", kShownSteps}, {"without_sync", apart.path}, {"with_sync", together.path}};
}

}  // namespace

Report run_sync(Group& group, const LessonOptions& options) {
  require_lesson_ranks(group, "sync");
  const Speaker say(sync_phrases(), options.language);
  Report report = begin_report(group, "sync", say("title"));
  const Pictures mine = draw_pictures(group.rank());
  const Pictures everything = gather_pictures(group, mine);

  torch::nn::Linear lonely = make_model();
  const Outcome apart =
      collect(group, train(lonely, mine, [&](const auto& x) { return lonely(x); }), everything);

  torch::nn::Linear model = make_model();
  DistributedDataParallel ddp(model, group);
  const Outcome together =
      collect(group, train(model, mine, [&](const auto& x) { return ddp(x); }), everything);

  torch::nn::Linear single = make_model();
  const at::Tensor alone_SF = train(single, everything, [&](const auto& x) { return single(x); });
  const double difference =
      (alone_SF[-1] - as_tensor(together.weights.front())).abs().max().item<double>();

  const int64_t num_steps = kShownSteps.back();
  const at::Tensor spread = gather(group, mine.input_PF.std(0));
  report.steps = {
      {.sentence = say("data", kPicturesPerRank),
       .table = rank_table(say("rank"), {say("ear"), say("whisker"), say("eye")}, as_rows(spread))},
      {.sentence = say("apart", num_steps, kSyncLr), .table = path_table(say, apart)},
      {.sentence = say("apart_result", apart.num_models())},
      {.sentence = say("together"), .table = path_table(say, together)},
      {.sentence = say(together.same ? "same" : "differ", together.num_models())},
      {.sentence = say("losses"), .table = loss_table(say, apart, together)},
      {.sentence =
           say("one_process", everything.input_PF.size(0), fmt::format("{:.1e}", difference))},
  };
  report.data["steps"] = num_steps;
  report.data["lr"] = kSyncLr;
  report.data["pictures_per_rank"] = kPicturesPerRank;
  report.data["start"] = kStart;
  report.data["without_sync"] = apart.weights;
  report.data["with_sync"] = together.weights;
  report.data["loss_without_sync"] = apart.losses;
  report.data["loss_with_sync"] = together.losses;
  report.data["same_bits_without_sync"] = apart.same;
  report.data["same_bits_with_sync"] = together.same;
  report.data["difference_from_one_process"] = difference;
  report.data["path"] = path_data(apart, together);
  return report;
}

}  // namespace lockstep::explain
