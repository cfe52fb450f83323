#include <algorithm>
#include <chrono>
#include <optional>

#include <ATen/ops/empty.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>
#include <lockstep/weights/weights.h>

#include "base/round.h"
#include "comm/agree.h"
#include "formats/sidecar.h"
#include "storage/storage.h"
#include "weights/checksums.h"
#include "weights/chunk_reader.h"
#include "weights/load_mode.h"
#include "weights/plan.h"
#include "weights/sink.h"
#include "weights/window.h"

namespace lockstep {

namespace {

constexpr int64_t kMinWindowBytes = 1 << 20;
constexpr uint64_t kOwnChunkBytes = 1 << 20;  // of a rank that reads for itself: stays in its cache
constexpr uint64_t kMinChunkBytes = 32 << 10;
// Small enough to be in the cache still when its checksum is computed, large enough for a direct
// read; a request to remote storage is for a whole chunk.
constexpr uint64_t kPieceBytes = 1 << 20;
constexpr int kReadsUnderWay = 8;  // on a node
constexpr uint64_t kMaxChunkBytes = 4 << 20;

using Sources = std::vector<std::unique_ptr<base::ByteSource>>;

// Those files that the plan reads; null for the others.
Sources open_sources(const weights::WeightCatalog& catalog, const weights::LoadPlan& plan,
                     weights::ReadsBy reads_by) {
  Sources sources(catalog.files.size());
  for (const weights::ReadRange& range : plan.ranges) {
    if (!sources[range.file]) {
      sources[range.file] = weights::open_file_of(catalog.files[range.file], reads_by);
    }
  }
  return sources;
}

bool reads_remote(const weights::WeightCatalog& catalog) {
  return std::any_of(
      catalog.files.begin(), catalog.files.end(),
      [](const weights::CatalogFile& file) { return storage::is_remote(file.opened); });
}

// All readers' slots together are the window; little is dealt out in equal chunks.
uint64_t chunk_bytes_for(const weights::LoadPlan& plan, LoadMode mode, uint64_t num_ranks,
                         uint64_t window_bytes) {
  if (mode == LoadMode::Each) {
    return std::min(kOwnChunkBytes, window_bytes / weights::kNumSlots);
  }
  const uint64_t num_readers = mode == LoadMode::Rank0 ? 1 : num_ranks;
  const uint64_t even =
      base::rounded_up((plan.stream_bytes + num_readers - 1) / num_readers, weights::kPageBytes);
  const uint64_t most =
      window_bytes / (weights::kNumSlots * num_readers) / weights::kPageBytes * weights::kPageBytes;
  return std::max(weights::kPageBytes,
                  std::min(even, std::clamp(most, kMinChunkBytes, kMaxChunkBytes)));
}

// Between nodes Gloo works on copies of what it sends and gets.
uint64_t window_bytes_of(const LoadOptions& options, const weights::Neighbours& neighbours) {
  return static_cast<uint64_t>(options.window_bytes) / (neighbours.num_nodes > 1 ? 2 : 1);
}

// One load, on one rank.
class Load {
 public:
  struct Parts {
    Group& group;
    const weights::LoadPlan& plan;
    const Sources& sources;
    weights::WeightSink& sink;
    bool is_remote = false;
  };
  Load(Parts parts, const weights::Neighbours& neighbours, const LoadOptions& options)
      : parts_(parts),
        plan_(parts.plan),
        options_(options),
        num_local_(neighbours.num_local),
        chunk_bytes_(chunk_bytes_for(plan_, options.mode, static_cast<uint64_t>(parts.group.size()),
                                     window_bytes_of(options, neighbours))),
        checksums_(plan_, chunk_bytes_),
        window_(weights::make_window(parts.group, neighbours,
                                     {.mode = options.mode, .chunk_bytes = chunk_bytes_})),
        scatter_(plan_, parts.sink) {}

  LoadReport run() {
    LoadReport report{.mode = options_.mode};
    const uint64_t sent = parts_.group.traffic().network_bytes_sent;
    std::exception_ptr error = move_chunks(report);
    if (!error) {
      error = comm::caught([&] { parts_.sink.finish(); });
    }
    comm::throw_together(parts_.group, error);
    if (options_.verify) {
      add_pieces_of_others();
      error = comm::caught([&] {
        if (options_.mode != LoadMode::Rank0 || parts_.group.rank() == 0) {
          checksums_.check();
        }
      });
      comm::throw_together(parts_.group, error);
      report.verified = plan_.is_verifiable;
    }
    report.network_bytes =
        parts_.group.traffic().network_bytes_sent - sent + window_->network_bytes();
    return report;
  }

 private:
  // Returns what went wrong here. If a chunk cannot be read, all ranks end with the same round.
  std::exception_ptr move_chunks(LoadReport& report) {
    const uint64_t num_readers = window_->num_readers();
    const uint64_t num_chunks = (plan_.stream_bytes + chunk_bytes_ - 1) / chunk_bytes_;
    const uint64_t num_rounds = (num_chunks + num_readers - 1) / num_readers;
    std::optional<weights::ChunkReader> reader;
    if (window_->reader()) {
      reader.emplace(reader_options(num_rounds));
    }
    std::exception_ptr error;
    for (uint64_t round = 0; round < num_rounds; ++round) {
      if (reader && !error) {
        error = comm::caught([&] { reader->await(round); });
      }
      if (!window_->share(round, !error)) {
        break;
      }
      if (reader) {
        reader->allow(round + weights::kNumSlots);
      }
      if (!error) {
        error = comm::caught([&] { take(round, report); });
      }
    }
    report.bytes_read = reader ? reader->bytes_read() : 0;
    return error;
  }

  weights::ReaderOptions reader_options(uint64_t num_rounds) {
    return {.plan = &plan_,
            .sources = parts_.sources,
            .checksums = options_.verify ? &checksums_ : nullptr,
            .chunk_bytes = chunk_bytes_,
            .piece_bytes = parts_.is_remote ? chunk_bytes_ : kPieceBytes,
            .reader = *window_->reader(),
            .num_readers = window_->num_readers(),
            .num_rounds = num_rounds,
            .num_ahead = weights::kNumSlots,
            .num_threads = num_threads(),
            .slot = [this](uint64_t round) { return window_->slot(round); }};
  }

  int num_threads() const {
    const bool is_alone = parts_.is_remote || options_.mode == LoadMode::Rank0;
    const int wanted = std::max(1, kReadsUnderWay / (is_alone ? 1 : num_local_));
    return std::min(wanted, static_cast<int>(weights::kNumSlots));  // each fills a slot
  }

  void take(uint64_t round, LoadReport& report) {
    for (uint64_t reader = 0; reader < window_->num_readers(); ++reader) {
      const uint64_t position = (round * window_->num_readers() + reader) * chunk_bytes_;
      if (position >= plan_.stream_bytes) {
        return;
      }
      const uint64_t bytes = std::min(chunk_bytes_, plan_.stream_bytes - position);
      scatter_.put(position, window_->chunk(round, reader).first(bytes));
      if (window_->reader() != reader) {
        report.bytes_exchanged += bytes;
      }
    }
  }

  // Each rank has the sums of what it read, and 0 for the rest.
  void add_pieces_of_others() {
    std::vector<uint32_t>& pieces = checksums_.pieces();
    if (options_.mode != LoadMode::Cooperative || pieces.empty()) {
      return;
    }
    const auto count = static_cast<int64_t>(pieces.size());
    const at::Tensor sums = at::empty({count}, at::kInt);
    auto* const data = reinterpret_cast<uint32_t*>(sums.mutable_data_ptr<int32_t>());
    std::copy(pieces.begin(), pieces.end(), data);
    parts_.group.all_reduce(sums);
    std::copy_n(data, count, pieces.begin());
  }

  const Parts parts_;
  const weights::LoadPlan& plan_;
  const LoadOptions options_;
  const int num_local_;
  const uint64_t chunk_bytes_;
  weights::Checksums checksums_;
  const std::unique_ptr<weights::Window> window_;
  weights::Scatter scatter_;
};

bool all_equal(const std::vector<int64_t>& numbers) {
  return std::adjacent_find(numbers.begin(), numbers.end(), std::not_equal_to<>()) == numbers.end();
}

// Collective, since ranks that do different things would wait for each other for ever.
void check_options(Group& group, const LoadOptions& options) {
  const auto number = (options.window_bytes << 8) | (static_cast<int64_t>(options.mode) << 2) |
                      (options.verify ? 2 : 0) | (options.sha256 ? 1 : 0);
  if (!all_equal(comm::gather_numbers(group, number))) {
    throw UsageError("load_weights: the ranks gave different options; give all the same");
  }
  if (options.window_bytes < kMinWindowBytes) {
    throw UsageError("load_weights: a window of {} bytes is below the least, {}",
                     options.window_bytes, kMinWindowBytes);
  }
}

// Collective. Opens the files where they are needed; what is wrong with them all ranks throw.
weights::LoadChoice open_and_choose(const Weights& weights, const weights::LoadPlan& plan,
                                    Group& group, LoadMode asked, int num_nodes, Sources& sources) {
  const bool same_tensors =
      all_equal(comm::gather_numbers(group, static_cast<int64_t>(plan.fingerprint())));
  const bool is_shared = group.size() > 1 && (asked == LoadMode::Each || !same_tensors);
  const auto error = comm::caught([&] {
    sources = open_sources(weights.catalog(), plan,
                           is_shared ? weights::ReadsBy::ManyRanks : weights::ReadsBy::OneRank);
  });
  const std::vector<int64_t> failed = comm::gather_numbers(group, error ? 1 : 0);
  const bool seen_by_all = std::count(failed.begin(), failed.end(), 1) == 0;
  const weights::LoadChoice choice =
      weights::choose_mode(asked, {.location = weights.location(),
                                   .num_ranks = group.size(),
                                   .num_nodes = num_nodes,
                                   .is_remote = reads_remote(weights.catalog()),
                                   .same_tensors = same_tensors,
                                   .seen_by_all = seen_by_all || failed[0] != 0,
                                   .bytes = plan.read_bytes});
  const bool counts = choice.mode != LoadMode::Rank0 || group.rank() == 0;
  comm::throw_together(group, counts ? error : nullptr);
  return choice;
}

// Collective: rank 0 reads every file whole.
void check_digests(const Weights& weights, Group& group) {
  const auto error = comm::caught([&] {
    if (group.rank() != 0) {
      return;
    }
    for (const weights::CatalogFile& file : weights.catalog().files) {
      const auto sidecar = storage::open_source(file.location + base::kSidecarSuffix);
      formats::verify_sidecar(*storage::open_source(file.opened),
                              formats::read_sidecar(*sidecar, file.location));
    }
  });
  comm::throw_together(group, error);
}

}  // namespace

LoadReport load_weights(Weights& weights, std::span<const WeightTarget> targets, Group& group,
                        LoadOptions options) {
  const auto start = std::chrono::steady_clock::now();
  check_options(group, options);
  weights::LoadPlan plan;
  comm::throw_together(
      group, comm::caught([&] { plan = weights::make_plan(weights.catalog(), targets); }));
  const weights::Neighbours neighbours = weights::find_neighbours(group);
  Sources sources;
  const weights::LoadChoice choice =
      open_and_choose(weights, plan, group, options.mode, neighbours.num_nodes, sources);
  options.mode = choice.mode;
  if (options.sha256) {
    check_digests(weights, group);
  }
  if (group.rank() == 0) {
    constexpr double kMega = 1e6;
    log::info("weights", "{}: {:.1f} MB in {} tensors, mode {}{}{}", weights.location(),
              static_cast<double>(plan.read_bytes) / kMega, targets.size(), name_of(choice.mode),
              choice.reason.empty() ? "" : ": ", choice.reason);
  }
  const auto sink = weights::make_sink(plan, targets, {.timeout = group.timeout()});
  LoadReport report = Load({.group = group,
                            .plan = plan,
                            .sources = sources,
                            .sink = *sink,
                            .is_remote = reads_remote(weights.catalog())},
                           neighbours, options)
                          .run();
  report.reason = choice.reason;
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

}  // namespace lockstep
