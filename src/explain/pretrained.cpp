// `pretrained`: weights on shared storage, into the memory of every rank, in three ways.

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <set>

#include <fmt/format.h>
#include <torch/torch.h>

#include <lockstep/ddp/distributed_data_parallel.h>
#include <lockstep/models/auto_model.h>
#include <lockstep/models/bert.h>

#include "base/stopwatch.h"
#include "base/unique_fd.h"
#include "comm/agree.h"
#include "explain/gather.h"
#include "explain/lesson.h"
#include "explain/replicas.h"
#include "explain/usage.h"

namespace lockstep::explain {
namespace {

constexpr std::array kModes = {LoadMode::Each, LoadMode::Rank0, LoadMode::Cooperative};

// A small BERT: quick to load, and large enough for its bytes to count (44 MB).
constexpr BertOptions kBuiltIn{
    .hidden_size = 256, .num_layers = 4, .num_heads = 4, .ffn_size = 1024};

// A folder that all ranks see: made by rank 0 and removed by it, together with this object.
class SharedFolder {
 public:
  explicit SharedFolder(Group& group) : is_mine_(group.rank() == 0) {
    const std::exception_ptr error = comm::caught([&] {
      if (is_mine_) {
        path_ = (std::filesystem::temp_directory_path() / "lockstep-explain-XXXXXX").string();
        if (::mkdtemp(path_.data()) == nullptr) {
          throw IoError("explain pretrained: cannot make {}: {}", path_, base::errno_text(errno));
        }
      }
    });
    comm::throw_together(group, error);
    path_ = comm::broadcast_text(group, path_);
  }
  ~SharedFolder() {
    std::error_code ignored;
    if (is_mine_) {
      std::filesystem::remove_all(path_, ignored);
    }
  }
  SharedFolder(SharedFolder&&) = delete;

  const std::string& path() const { return path_; }

 private:
  bool is_mine_;
  std::string path_;
};

void publish_model(Group& group, const std::string& folder) {
  comm::throw_together(group, comm::caught([&] {
                         if (group.rank() == 0) {
                           save_pretrained(*Bert(kBuiltIn), folder);
                         }
                       }));
}

// One way of loading, as all ranks saw it.
struct Loading {
  AutoModel model;
  std::vector<int64_t> bytes_read;
  std::vector<int64_t> bytes_exchanged;
  std::vector<int64_t> bytes_sent;   // to other nodes
  std::vector<int64_t> extra_bytes;  // the most memory beside the model
  std::vector<double> seconds;
  Hashes hashes;
};

int64_t model_bytes(const torch::nn::Module& model) {
  int64_t bytes = 0;
  for (const at::Tensor& parameter : model.parameters()) {
    bytes += static_cast<int64_t>(parameter.nbytes());
  }
  return bytes;
}

Loading load(const std::string& location, Group& group, LoadMode mode) {
  group.barrier();
  const PeakMemory memory;
  const base::Stopwatch time;
  AutoModel model = AutoModel::from_pretrained(location, group, {.load = {.mode = mode}});
  const double seconds = time.seconds();
  const int64_t extra = std::max<int64_t>(memory.extra_bytes() - model_bytes(*model.module()), 0);
  const LoadReport& report = model.report().load;
  return {
      .model = model,
      .bytes_read = comm::gather_numbers(group, static_cast<int64_t>(report.bytes_read)),
      .bytes_exchanged = comm::gather_numbers(group, static_cast<int64_t>(report.bytes_exchanged)),
      .bytes_sent = comm::gather_numbers(group, static_cast<int64_t>(report.network_bytes)),
      .extra_bytes = comm::gather_numbers(group, extra),
      .seconds = gather_seconds(group, seconds),
      .hashes = gather_hashes(group, *model.module())};
}

// "2.5": how many times the file.
std::string times_text(int64_t bytes, int64_t file_bytes) {
  return fmt::format("{:.2f}", static_cast<double>(bytes) / static_cast<double>(file_bytes));
}

Table read_table(const Speaker& say, const Loading& loading) {
  Table table{.header = {say("rank"), say("read"), say("exchanged"), say("sent")}};
  for (size_t rank = 0; rank < loading.bytes_read.size(); ++rank) {
    table.rows.push_back({std::to_string(rank), size_text(loading.bytes_read[rank]),
                          size_text(loading.bytes_exchanged[rank]),
                          size_text(loading.bytes_sent[rank])});
  }
  return table;
}

Table mode_table(const Speaker& say, std::span<const Loading> loadings, int64_t file_bytes) {
  Table table{.header = {say("mode"), say("read"), say("times"), say("sent"), say("extra"),
                         say("seconds")}};
  for (const Loading& loading : loadings) {
    const int64_t read = sum(loading.bytes_read);
    table.rows.push_back({std::string(name_of(loading.model.report().load.mode)), size_text(read),
                          times_text(read, file_bytes), size_text(sum(loading.bytes_sent)),
                          size_text(largest(loading.extra_bytes)),
                          fmt::format("{:.2f}", largest(loading.seconds))});
  }
  return table;
}

Table hash_table(const Speaker& say, std::span<const Loading> loadings) {
  Table table{.header = {say("rank")}};
  for (const Loading& loading : loadings) {
    table.header.emplace_back(name_of(loading.model.report().load.mode));
  }
  for (size_t rank = 0; rank < loadings.front().hashes.of_rank.size(); ++rank) {
    table.rows.push_back({std::to_string(rank)});
    for (const Loading& loading : loadings) {
      table.rows.back().push_back(loading.hashes.texts()[rank]);
    }
  }
  return table;
}

size_t num_models(std::span<const Loading> loadings) {
  std::set<uint64_t> models;
  for (const Loading& loading : loadings) {
    models.insert(loading.hashes.of_rank.begin(), loading.hashes.of_rank.end());
  }
  return models.size();
}

nlohmann::ordered_json data_of(const Loading& loading) {
  return {{"mode", name_of(loading.model.report().load.mode)},
          {"bytes_read", loading.bytes_read},
          {"bytes_exchanged", loading.bytes_exchanged},
          {"network_bytes", loading.bytes_sent},
          {"extra_memory_bytes", loading.extra_bytes},
          {"seconds", loading.seconds},
          {"hashes", loading.hashes.texts()}};
}

}  // namespace

Report run_pretrained(Group& group, const LessonOptions& options) {
  require_lesson_ranks(group, "pretrained");
  const Speaker say(pretrained_phrases(), options.language);
  Report report = begin_report(group, "pretrained", say("title"));

  std::optional<SharedFolder> folder;
  std::string location = options.model;
  if (location.empty()) {
    location = folder.emplace(group).path();
    publish_model(group, location);
  }
  const Weights weights = Weights::open(location, group);
  std::vector<Loading> loadings;
  for (const LoadMode mode : kModes) {
    loadings.push_back(load(location, group, mode));
  }
  const Loading by_itself = load(location, group, LoadMode::Auto);

  const std::vector<int64_t> nodes = gather_nodes(group);
  report.steps = {{.sentence = say("start", location, size_text(weights.file_bytes()),
                                   weights.tensors().size(), group.size(), num_different(nodes))}};
  for (const Loading& loading : loadings) {
    report.steps.push_back(
        {.sentence = say(name_of(loading.model.report().load.mode),
                         times_text(sum(loading.bytes_read), weights.file_bytes())),
         .table = read_table(say, loading)});
    report.data["modes"].push_back(data_of(loading));
  }
  const LoadReport& chosen = by_itself.model.report().load;
  const DistributedDataParallel ddp(by_itself.model.module(), group);
  const Hashes after = gather_hashes(group, *by_itself.model.module());
  report.steps.insert(
      report.steps.end(),
      {{.sentence = say("compare"), .table = mode_table(say, loadings, weights.file_bytes())},
       {.sentence = say("auto", name_of(chosen.mode), chosen.reason)},
       {.sentence = say("equal", num_models(loadings)), .table = hash_table(say, loadings)},
       {.sentence = say("wrap", after.num_changed(by_itself.hashes))}});
  report.data["location"] = options.model.empty() ? "built in" : location;
  report.data["file_bytes"] = weights.file_bytes();
  report.data["tensors"] = weights.tensors().size();
  report.data["nodes"] = nodes;
  report.data["auto"] = {{"mode", name_of(chosen.mode)}, {"reason", chosen.reason}};
  report.data["hashes_after_ddp"] = after.texts();
  report.data["same_bits"] = num_models(loadings) == 1 && after.num_models() == 1 &&
                             after.of_rank == loadings.front().hashes.of_rank;
  return report;
}

}  // namespace lockstep::explain
