// `scratch`: a new model from a seed, equal on every rank before they have exchanged a word.

#include <fmt/format.h>
#include <torch/torch.h>

#include <lockstep/ddp/distributed_data_parallel.h>
#include <lockstep/models/my_transformer.h>

#include "base/stopwatch.h"
#include "comm/agree.h"
#include "explain/gather.h"
#include "explain/lesson.h"
#include "explain/replicas.h"
#include "explain/usage.h"
#include "models/parameter_hash.h"

namespace lockstep::explain {
namespace {

constexpr uint64_t kSeed = 42;
constexpr int64_t kShownValues = 3;  // weights of each rank in the table

struct Making {
  MyTransformer model{nullptr};
  int64_t read_calls = 0;
  int64_t memory_bytes = 0;
  int64_t bytes_sent = 0;  // to other nodes
  double seconds = 0;
};

Making make_model(const Group& group) {
  // libtorch asks the kernel about the machine the first time that it computes: not for the model.
  const MyTransformer first(MyTransformerOptions{
      .vocab_size = 64, .hidden_size = 512, .num_layers = 1, .max_positions = 64});
  Making making;
  const PeakMemory memory;
  const SentBytes sent(group);
  const ReadCalls reads;
  const base::Stopwatch time;
  making.model = MyTransformer(MyTransformerOptions{.seed = kSeed});
  making.seconds = time.seconds();
  making.read_calls = reads.count();
  making.bytes_sent = sent.count();
  making.memory_bytes = memory.extra_bytes();
  return making;
}

// The same on every rank: what all of them found.
struct Makings {
  std::vector<int64_t> nodes;
  Rows first_weights;
  std::vector<int64_t> read_calls;
  std::vector<int64_t> memory_bytes;
  std::vector<int64_t> bytes_sent;
  std::vector<double> seconds;
  Hashes hashes;
};

Makings gather_makings(Group& group, const Making& mine) {
  const at::Tensor first =
      mine.model->parameters().front().detach().flatten().slice(0, 0, kShownValues);
  return {.nodes = gather_nodes(group),
          .first_weights = as_rows(gather(group, first.to(torch::kFloat64))),
          .read_calls = comm::gather_numbers(group, mine.read_calls),
          .memory_bytes = comm::gather_numbers(group, mine.memory_bytes),
          .bytes_sent = comm::gather_numbers(group, mine.bytes_sent),
          .seconds = gather_seconds(group, mine.seconds),
          .hashes = gather_hashes(group, *mine.model)};
}

Table makings_table(const Speaker& say, const Makings& all) {
  Table table{
      .header = {say("rank"), say("node"), say("first"), say("hash"), say("reads"), say("sent")}};
  const std::vector<std::string> hashes = all.hashes.texts();
  for (size_t rank = 0; rank < hashes.size(); ++rank) {
    table.rows.push_back(
        {std::to_string(rank), std::to_string(all.nodes[rank]),
         NumberFormat(all.first_weights[rank]).list(all.first_weights[rank]) + ", ...",
         hashes[rank], std::to_string(all.read_calls[rank]), size_text(all.bytes_sent[rank])});
  }
  return table;
}

}  // namespace

Report run_scratch(Group& group, const LessonOptions& options) {
  require_lesson_ranks(group, "scratch");
  const Speaker say(scratch_phrases(), options.language);
  Report report = begin_report(group, "scratch", say("title"));

  const Making mine = make_model(group);
  // From here on the ranks talk to each other: about what they have made.
  const Makings all = gather_makings(group, mine);
  const int64_t reads = sum(all.read_calls);

  const SentBytes sent(group);
  const base::Stopwatch wrap_time;
  const DistributedDataParallel ddp(mine.model, group);
  const std::vector<double> wrap_seconds = gather_seconds(group, wrap_time.seconds());
  const std::vector<int64_t> wrap_sent = comm::gather_numbers(group, sent.count());
  const Hashes after = gather_hashes(group, *mine.model);

  report.steps = {
      {.sentence = say("start", group.size(), num_different(all.nodes))},
      {.sentence = say("make", models::num_parameters(*mine.model), kSeed),
       .table = makings_table(say, all)},
      {.sentence = say("counts", reads, sum(all.bytes_sent), size_text(largest(all.memory_bytes)),
                       fmt::format("{:.2f}", largest(all.seconds)))},
      {.sentence = say(all.hashes.num_models() == 1 ? "equal" : "unequal")},
      {.sentence = say("wrap", fmt::format("{:.2f}", largest(wrap_seconds)),
                       size_text(sum(wrap_sent)), after.num_changed(all.hashes))},
      {.sentence = say("ready", group.size(), after.num_models(), reads)},
  };
  report.data["seed"] = kSeed;
  report.data["parameters"] = models::num_parameters(*mine.model);
  report.data["nodes"] = all.nodes;
  report.data["first_weights"] = all.first_weights;
  report.data["hashes_before_communication"] = all.hashes.texts();
  report.data["read_calls"] = all.read_calls;
  report.data["network_bytes_before_ddp"] = all.bytes_sent;
  report.data["memory_bytes"] = all.memory_bytes;
  report.data["seconds"] = all.seconds;
  report.data["ddp_seconds"] = largest(wrap_seconds);
  report.data["ddp_network_bytes"] = sum(wrap_sent);
  report.data["hashes_after_ddp"] = after.texts();
  report.data["same_bits"] = after.num_models() == 1;
  return report;
}

}  // namespace lockstep::explain
