// `replicate`: models that start apart are made one by a broadcast of rank 0's weights.

#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>
#include <torch/torch.h>

#include <lockstep/ddp/distributed_data_parallel.h>

#include "comm/agree.h"
#include "explain/gather.h"
#include "explain/lesson.h"
#include "explain/replicas.h"

namespace lockstep::explain {
namespace {

constexpr int64_t kInputs = 3;
constexpr int64_t kHidden = 4;
constexpr size_t kShownWeights = 3;      // weights of each rank in the tables
constexpr uint64_t kFirstSeed = 1;       // of rank 0; rank r takes the r-th after it
constexpr uint64_t kWrapperSeed = 1001;  // the same for the models that DDP gets

torch::nn::Sequential make_model(uint64_t seed) {
  torch::nn::Sequential model(torch::nn::Linear(kInputs, kHidden), torch::nn::Tanh(),
                              torch::nn::Linear(kHidden, 1));
  // A generator of its own: the process-wide one is not the lesson's to seed.
  const at::Generator generator = at::detail::createCPUGenerator(seed);
  torch::NoGradGuard no_grad;
  for (auto& parameter : model->parameters()) {
    parameter.normal_(0, 0.5, generator);
  }
  return model;
}

at::Tensor flat_weights(const torch::nn::Sequential& model) {
  torch::NoGradGuard no_grad;
  return torch::nn::utils::parameters_to_vector(model->parameters());
}

// What each rank says about its own model.
struct Census {
  Rows weights;
  std::vector<int64_t> elements;
  std::vector<std::string> hashes;
  size_t num_models = 0;  // different ones
  bool same = false;      // bit for bit, and by hash
};

Census take_census(Group& group, const torch::nn::Sequential& model) {
  const at::Tensor mine = flat_weights(model);
  const at::Tensor weights = gather(group, mine);
  const std::vector<int64_t> elements = comm::gather_numbers(group, mine.numel());
  const Hashes hashes = gather_hashes(group, *model);
  return {.weights = as_rows(weights),
          .elements = elements,
          .hashes = hashes.texts(),
          .num_models = hashes.num_models(),
          .same = same_bits(weights) && hashes.num_models() == 1};
}

Table census_table(const Speaker& say, const Census& census) {
  Table table{.header = {say("rank"), say("seed"), say("elements"), say("first"), say("hash")}};
  for (size_t rank = 0; rank < census.hashes.size(); ++rank) {
    const std::vector<double> first(census.weights[rank].begin(),
                                    census.weights[rank].begin() + kShownWeights);
    table.rows.push_back({std::to_string(rank), std::to_string(kFirstSeed + rank),
                          std::to_string(census.elements[rank]),
                          NumberFormat(first).list(first) + ", ...", census.hashes[rank]});
  }
  return table;
}

}  // namespace

Report run_replicate(Group& group, const LessonOptions& options) {
  require_lesson_ranks(group, "replicate");
  const Speaker say(replicate_phrases(), options.language);
  Report report = begin_report(group, "replicate", say("title"));

  const torch::nn::Sequential model = make_model(kFirstSeed + group.rank());
  const Census before = take_census(group, model);
  {
    torch::NoGradGuard no_grad;
    for (auto& parameter : model->parameters()) {
      group.broadcast(parameter, {.root = 0});
    }
  }
  const Census after = take_census(group, model);

  const torch::nn::Sequential other = make_model(kWrapperSeed + group.rank());
  const Census unwrapped = take_census(group, other);
  const DistributedDataParallel ddp(other, group);
  const Census wrapped = take_census(group, other);

  report.steps = {
      {.sentence = say("random", before.num_models), .table = census_table(say, before)},
      {.sentence = say("why")},
      {.sentence = say("broadcast", after.num_models), .table = census_table(say, after)},
      {.sentence = say(after.same ? "same" : "differ")},
      {.sentence = say("wrapper", unwrapped.num_models, wrapped.num_models)},
  };
  report.data["elements"] = after.elements;
  report.data["weights_before"] = before.weights;
  report.data["hashes_before"] = before.hashes;
  report.data["same_bits_before"] = before.same;
  report.data["weights_after"] = after.weights;
  report.data["hashes_after"] = after.hashes;
  report.data["same_bits_after"] = after.same;
  report.data["same_bits_before_ddp"] = unwrapped.same;
  report.data["same_bits_after_ddp"] = wrapped.same;
  return report;
}

}  // namespace lockstep::explain
