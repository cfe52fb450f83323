// `average`: gradients of all ranks become one average, and the weights stay the same everywhere.

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/torch.h>

#include <lockstep/base/error.h>

#include "explain/gather.h"
#include "explain/lesson.h"

namespace lockstep::explain {
namespace {

// The second example: gradients of a loss, so they are subtracted.
const Rows kLossGradients = {{0.8, 0.2, 0.5}, {0.6, 0.4, 0.3}, {0.7, 0.3, 0.4}, {0.5, 0.1, 0.6}};
const std::vector<double> kParams = {1.0, 1.0, 1.0};
constexpr double kLossLr = 0.1;

constexpr size_t kMaxTerms = 8;  // a sum of more is shortened

// What the ranks told each other; row r is rank r's.
struct Exchange {
  Rows gradients;
  Rows averages;
  bool same = false;
  at::Tensor average;  // this rank's
};

Exchange exchange(Group& group, const at::Tensor& gradient) {
  Exchange result;
  result.average = gradient.clone();
  result.gradients = as_rows(gather(group, result.average));
  group.all_reduce(result.average, {.op = ReduceOp::Average});
  const at::Tensor averages = gather(group, result.average);
  result.averages = as_rows(averages);
  result.same = same_bits(averages);
  return result;
}

std::vector<std::string> weight_names(const Speaker& say, const AverageInput& input) {
  if (input.built_in) {
    return {say("ear"), say("whisker"), say("eye")};
  }
  std::vector<std::string> names;
  for (size_t i = 1; i <= input.weights.size(); ++i) {
    names.push_back(say("numbered", i));
  }
  return names;
}

// "ear 0.5, whisker 0.3"
std::string with_names(const std::vector<std::string>& names, const std::vector<double>& values) {
  const NumberFormat format(values);
  std::vector<std::string> parts;
  for (size_t i = 0; i < values.size(); ++i) {
    parts.push_back(names[i] + " " + format(values[i]));
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

// Per weight: the sum that the ranks' gradients stand for, and the average that came back.
Table sum_table(const Speaker& say, const std::vector<std::string>& names, const Exchange& facts) {
  Table table{.header = {say("weight"), say("sum"), say("average")}};
  const NumberFormat average_format(facts.averages.front());
  for (size_t i = 0; i < names.size(); ++i) {
    std::vector<double> terms;
    for (const auto& row : facts.gradients) {
      terms.push_back(row[i]);
    }
    std::vector<std::string> texts = NumberFormat(terms).cells(terms);
    if (texts.size() > kMaxTerms) {
      texts.erase(texts.begin() + kMaxTerms - 2, texts.end() - 1);
      texts.insert(texts.end() - 1, "...");
    }
    table.rows.push_back({names[i], fmt::format("({}) / {}", fmt::join(texts, " + "), terms.size()),
                          average_format(facts.averages.front()[i])});
  }
  return table;
}

// Every rank's weights after weights += factor * average, gathered.
at::Tensor update(Group& group, const at::Tensor& weights, const at::Tensor& average,
                  double factor) {
  weights.add_(average, factor);
  return gather(group, weights);
}

void add_second_iteration(Group& group, const Speaker& say, const AverageInput& input,
                          const at::Tensor& weights, Report& report) {
  const std::vector<double> before = as_vector(weights);
  const Exchange facts = exchange(group, as_tensor(input.gradients[group.rank()]));
  const Rows after =
      as_rows(update(group, weights, facts.average, input.descend ? -input.lr : input.lr));
  const std::vector<std::string> names = weight_names(say, input);
  report.steps.push_back({.sentence = say(input.descend ? "again_descend" : "again",
                                          with_names(names, facts.averages.front())),
                          .table = rank_table(say("rank"), names, after)});
  report.data["second_iteration"] = {{"gradients", facts.gradients},
                                     {"average", facts.averages.front()},
                                     {"weights_before", before},
                                     {"weights_after", after}};
}

void add_second_example(Group& group, const Speaker& say, Report& report) {
  at::Tensor params = as_tensor(kParams).requires_grad_(true);
  // The simplest loss that has this gradient.
  (as_tensor(kLossGradients[group.rank()]) * params).sum().backward();
  const Exchange facts = exchange(group, params.grad());
  params.mutable_grad() = facts.average;
  torch::optim::SGD({params}, torch::optim::SGDOptions(kLossLr)).step();
  const Rows after = as_rows(gather(group, params.detach()));
  std::vector<std::string> names;
  for (size_t i = 1; i <= kParams.size(); ++i) {
    names.push_back(say("parameter", i));
  }
  report.steps.push_back(
      {.sentence = say("example"), .table = rank_table(say("rank"), names, facts.gradients)});
  report.steps.push_back(
      {.sentence = say("example_average"), .table = sum_table(say, names, facts)});
  report.steps.push_back(
      {.sentence = say("descend", kLossLr), .table = rank_table(say("rank"), names, after)});
  report.data["second_example"] = {{"gradients", facts.gradients},
                                   {"average", facts.averages.front()},
                                   {"lr", kLossLr},
                                   {"params_before", kParams},
                                   {"params_after", after}};
}

}  // namespace

Report run_average(Group& group, const LessonOptions& options) {
  const AverageInput& input = options.average;
  if (static_cast<size_t>(group.size()) != input.gradients.size()) {
    throw UsageError(
        "explain average: the gradients have {} rows, one for each rank, but {} ranks were "
        "started; start it with `lockstep explain average`, which counts the rows",
        input.gradients.size(), group.size());
  }
  const Speaker say(average_phrases(), options.language);
  const std::vector<std::string> names = weight_names(say, input);
  const std::string variant = input.descend ? "_descend" : "";
  Report report = begin_report(group, "average", say("title"));

  const at::Tensor weights = as_tensor(input.weights);
  const Exchange facts = exchange(group, as_tensor(input.gradients[group.rank()]));
  const at::Tensor updated =
      update(group, weights, facts.average, input.descend ? -input.lr : input.lr);
  const Rows after = as_rows(updated);
  report.steps = {
      {.sentence = say("start", group.size(), with_names(names, input.weights))},
      {.sentence = say("gradients" + variant),
       .table = rank_table(say("rank"), names, facts.gradients)},
      {.sentence = say("reduce"), .table = sum_table(say, names, facts)},
      {.sentence = say(facts.same ? "same" : "differ"),
       .table = rank_table(say("rank"), names, facts.averages)},
      {.sentence = say("update" + variant, input.lr),
       .table = rank_table(say("rank"), names, after)},
  };
  report.data["gradients"] = facts.gradients;
  report.data["average"] = facts.averages.front();
  report.data["lr"] = input.lr;
  report.data["descend"] = input.descend;
  report.data["weights_before"] = input.weights;
  report.data["weights_after"] = after;
  report.data["same_bits"] = facts.same && same_bits(updated);

  add_second_iteration(group, say, input, weights, report);
  if (input.built_in) {
    add_second_example(group, say, report);
  }
  return report;
}

}  // namespace lockstep::explain
