// `features`: each rank learns one feature; after the all-reduce all ranks know all of them.

#include <algorithm>

#include <torch/torch.h>

#include "explain/gather.h"
#include "explain/lesson.h"

namespace lockstep::explain {
namespace {

// What rank r found about feature r.
const std::vector<double> kFound = {0.8, 0.6, 0.7, 0.5};
constexpr const char* kFeatures[] = {"ear", "whisker", "tail", "claw"};
constexpr double kLr = 1.0;

// The rows, with one more column: how many features each rank knows anything about.
Table knowledge_table(const Speaker& say, std::vector<std::string> names, const Rows& rows) {
  Table table = rank_table(say("rank"), names, rows);
  table.header.push_back(say("knows"));
  for (size_t rank = 0; rank < rows.size(); ++rank) {
    const auto unknown = std::count(rows[rank].begin(), rows[rank].end(), 0.0);
    table.rows[rank].push_back(std::to_string(rows[rank].size() - unknown));
  }
  return table;
}

Table two_rows(const Speaker& say, const std::vector<std::string>& names,
               const std::vector<double>& sum, const std::vector<double>& average) {
  Table table = rank_table(say("operation"), names, {sum, average});
  table.rows[0][0] = say("sum");
  table.rows[1][0] = say("average");
  return table;
}

}  // namespace

Report run_features(Group& group, const LessonOptions& options) {
  require_lesson_ranks(group, "features");
  const Speaker say(features_phrases(), options.language);
  Report report = begin_report(group, "features", say("title"));
  std::vector<std::string> names;
  for (const char* feature : kFeatures) {
    names.push_back(say(feature));
  }

  const at::Tensor gradient = torch::zeros({kLessonRanks}, torch::kFloat64);
  gradient[group.rank()] = kFound[group.rank()];
  const at::Tensor sum = gradient.clone();
  const at::Tensor average = gradient.clone();
  group.all_reduce(sum);
  group.all_reduce(average, {.op = ReduceOp::Average});

  const Rows gradients = as_rows(gather(group, gradient));
  const at::Tensor weights = gather(group, kLr * average);
  const double scaled_lr = group.size();
  const at::Tensor scaled = gather(group, scaled_lr * average);
  const double difference = (scaled - gather(group, sum)).abs().max().item<double>();
  const bool same = same_bits(weights) && same_bits(scaled);

  report.steps = {
      {.sentence = say("before"), .table = knowledge_table(say, names, gradients)},
      {.sentence = say("reduce", group.size()),
       .table = two_rows(say, names, as_vector(sum), as_vector(average))},
      {.sentence = say("why", group.size())},
      {.sentence = say("after_average", kLr),
       .table = knowledge_table(say, names, as_rows(weights))},
      {.sentence = say("after_scaled", scaled_lr, difference),
       .table = knowledge_table(say, names, as_rows(scaled))},
      {.sentence = say(same ? "same" : "differ")},
  };
  report.data["features"] = kFeatures;
  report.data["gradients"] = gradients;
  report.data["sum"] = as_vector(sum);
  report.data["average"] = as_vector(average);
  report.data["lr"] = kLr;
  report.data["weights_after"] = as_rows(weights);
  report.data["scaled_lr"] = scaled_lr;
  report.data["weights_after_scaled_lr"] = as_rows(scaled);
  report.data["same_bits"] = same;
  return report;
}

}  // namespace lockstep::explain
