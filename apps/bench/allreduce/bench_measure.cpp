#include "bench/allreduce/bench_measure.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <optional>
#include <thread>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "bench/allreduce/bench_probe.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kSmallBytes = 64 << 10;  // up to here an operation may be shorter than what a
                                           // rank loses on its way out of a barrier
constexpr int64_t kBatchBytes = 4 << 20;   // of one batch's buffers
constexpr int64_t kMaxBatch = 64;          // operations
static_assert(kMaxBatch <= kMaxMpiBatch);
constexpr int64_t kMaxGlooBatch = 8;  // its small operations take milliseconds
constexpr double kMaxBatchUs = 2e5;
constexpr int64_t kLeastSmallOperations = 1000;
constexpr double kSmallBudgetUs = 4e6;  // even they may be slow: between nodes, or on a busy host
constexpr int64_t kLeastOperations = 30;
constexpr int64_t kMaxRounds = 66;       // per repeat
constexpr double kRepeatBudgetUs = 6e5;  // for one variant at one size, if the least counts allow
constexpr int kProbesPerRepeat = 4;
constexpr size_t kOwnTurns = 3;  // of a round: in place, staged, the memory pass; then the peers
constexpr auto kRest = std::chrono::milliseconds(2);  // until the other ranks sleep
constexpr int64_t kWarmUpBytes = 4 << 20;  // below it everybody warms up: others were here before

double us_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double, std::micro>(to - from).count();
}

// Every rank's values become the largest of all ranks.
void take_largest(Group& group, std::vector<double>& times) {
  const auto count = static_cast<int64_t>(times.size());
  const at::Tensor tensor = at::empty({count}, at::kDouble);
  std::copy(times.begin(), times.end(), tensor.data_ptr<double>());
  group.all_reduce(tensor, {.op = ReduceOp::Max});
  std::copy_n(tensor.data_ptr<double>(), count, times.begin());
}

class Measurement {
 public:
  Measurement(Group group, const BenchPeers& peers, const BenchMeasureOptions& options)
      : group_(std::move(group)), peers_(peers), options_(options) {
    const int64_t fitting = kBatchBytes / std::max<int64_t>(1, options_.bytes);
    max_batch_ = options_.bytes > kSmallBytes ? 1 : std::clamp<int64_t>(fitting, 1, kMaxBatch);
    result_.bytes = options_.bytes;
    for (const std::string& name : peers_.names) {
      result_.peers.push_back({.name = name, .times = {}});
    }
    peer_rounds_.resize(result_.peers.size());
    case_.emplace(group_, peers_.gloo,
                  BenchCaseOptions{.operation = options_.operation,
                                   .type = options_.type,
                                   .bytes = options_.bytes,
                                   .num_slots = static_cast<int>(max_batch_)});
  }

  BenchResult run() {
    plan_rounds();
    for (int repeat = 0; repeat < options_.repeats; ++repeat) {
      run_repeat();
    }
    if (group_.backend_name() == "hierarchical") {
      result_.network_bytes_per_node = busiest_node_bytes();
    }
    return std::move(result_);
  }

 private:
  // Warms every variant up and decides, from these times, how often each is measured.
  void plan_rounds() {
    const double in_place_us = warm_up(BenchVariant::Lockstep, 1);
    const double own_us = std::max(in_place_us, warm_up(BenchVariant::Staged, 1));
    const int64_t batch = batch_for(own_us, max_batch_);
    for (BenchTimes* times : {&result_.lockstep, &result_.staged, &result_.memory_pass}) {
      times->batch = static_cast<int>(batch);
    }
    const double warm_us =
        std::max(warm_up(BenchVariant::Lockstep, batch), warm_up(BenchVariant::Staged, batch));
    warm_up(BenchVariant::MemoryPass, batch);
    rounds_ = std::max(per_repeat(least_operations(warm_us), batch),
                       std::min(kMaxRounds, affordable(warm_us * static_cast<double>(batch))));
    for (size_t i = 0; i < result_.peers.size(); ++i) {
      if (result_.peers[i].name == "gloo") {
        plan_gloo(i, batch);
      }
    }
    // The MPIs come last: no number that all ranks must agree on depends on what rank 0 finds.
    alone([&] {
      for (size_t i = 0; i < result_.peers.size(); ++i) {
        if (MpiRanks* mpi = mpi_of(i)) {
          plan_mpi(i, *mpi, batch);
        }
      }
    });
  }

  void plan_gloo(size_t peer, int64_t own_batch) {
    const double once_us = warm_up(BenchVariant::Gloo, 1);
    const int64_t batch = batch_for(once_us, std::min(own_batch, kMaxGlooBatch));
    result_.peers[peer].times.batch = static_cast<int>(batch);
    const double batch_us = warm_up(BenchVariant::Gloo, batch) * static_cast<double>(batch);
    const int64_t least_rounds = per_repeat(kLeastOperations, batch);
    rounds_ = std::max(rounds_, least_rounds);
    peer_rounds_[peer] = std::min(rounds_, std::max(least_rounds, affordable(batch_us)));
  }

  // Rank 0 alone calls this.
  void plan_mpi(size_t peer, MpiRanks& mpi, int64_t own_batch) {
    const auto warm_up_mpi = [&](int64_t batch) {
      BenchTimes times;
      times.batch = static_cast<int>(batch);
      times.begin_repeat();
      run_mpi_batch(mpi, times);
      run_mpi_batch(mpi, times);
      return std::max(times.batches_us[0].back(), 1e-3);
    };
    const int64_t batch = batch_for(warm_up_mpi(1), own_batch);
    result_.peers[peer].times.batch = static_cast<int>(batch);
    const double batch_us = warm_up_mpi(batch) * static_cast<double>(batch);
    const int64_t least_rounds = per_repeat(kLeastOperations, batch);
    peer_rounds_[peer] = std::min(rounds_, std::max(least_rounds, affordable(batch_us)));
  }

  // Returns the MPI of that number among the peers; null if it is none, and on all ranks but rank
  // 0.
  MpiRanks* mpi_of(size_t peer) const {
    for (const auto& mpi : peers_.mpis) {
      if (mpi->name() == peers_.names[peer]) {
        return mpi.get();
      }
    }
    return nullptr;
  }

  static int64_t batch_for(double operation_us, int64_t most) {
    return std::clamp<int64_t>(static_cast<int64_t>(kMaxBatchUs / operation_us), 1, most);
  }

  int64_t least_operations(double operation_us) const {
    if (options_.bytes > kSmallBytes) {
      return kLeastOperations;
    }
    const auto in_time = static_cast<int64_t>(kSmallBudgetUs / operation_us);
    return std::clamp(in_time, kLeastOperations, kLeastSmallOperations);
  }

  // Returns how many batches of each repeat make up so many operations in all.
  int64_t per_repeat(int64_t operations, int64_t batch) const {
    const int64_t step = batch * options_.repeats;
    return (operations + step - 1) / step;
  }

  static int64_t affordable(double batch_us) {
    return static_cast<int64_t>(kRepeatBudgetUs / batch_us);
  }

  // Returns the microseconds per operation once warm, which are the same on all ranks.
  double warm_up(BenchVariant variant, int64_t batch) {
    BenchTimes times;
    times.batch = static_cast<int>(batch);
    times.begin_repeat();
    run_batch(variant, times);
    run_batch(variant, times);
    return std::max(times.batches_us[0].back(), 1e-3);
  }

  void run_repeat() {
    for (BenchTimes* times : {&result_.lockstep, &result_.staged, &result_.memory_pass}) {
      times->begin_repeat();
    }
    for (BenchPeerTimes& peer : result_.peers) {
      peer.times.begin_repeat();
    }
    for (int64_t round = 0; round < rounds_; ++round) {
      if (is_turn(round, std::min<int64_t>(rounds_, kProbesPerRepeat))) {
        probe();
      }
      // Each variant finds in the caches what its predecessor has left there. So the first becomes
      // the last from round to round, and every other round runs backwards.
      const auto num_turns = static_cast<int64_t>(kOwnTurns + result_.peers.size());
      for (int64_t i = 0; i < num_turns; ++i) {
        const int64_t place = (i + round / 2) % num_turns;
        take_turn(static_cast<size_t>(round % 2 == 0 ? place : num_turns - 1 - place), round);
      }
    }
  }

  // Whether one of `times` turns, evenly dealt to the rounds of a repeat, is in this one.
  bool is_turn(int64_t round, int64_t times) const {
    return (round + 1) * times / rounds_ > round * times / rounds_;
  }

  void take_turn(size_t turn, int64_t round) {
    switch (turn) {
      case 0:
        run_batch(BenchVariant::Lockstep, result_.lockstep);
        network_bytes_ += last_network_bytes_;
        return;
      case 1:
        run_batch(BenchVariant::Staged, result_.staged);
        return;
      case 2:
        run_batch(BenchVariant::MemoryPass, result_.memory_pass);
        return;
      default:
        take_peers_turn(turn - kOwnTurns, round);
    }
  }

  void take_peers_turn(size_t peer, int64_t round) {
    BenchTimes& times = result_.peers[peer].times;
    if (peers_.names[peer] != "gloo") {
      alone([&] {
        if (is_turn(round, peer_rounds_[peer])) {
          run_mpi_batch(*mpi_of(peer), times);
        }
      });
    } else if (is_turn(round, peer_rounds_[peer])) {
      run_batch(BenchVariant::Gloo, times);
    }
  }

  // All of a result is looked at once per repeat, a sample of it otherwise.
  static CheckExtent extent_of(const BenchTimes& times) {
    return times.batches_us.back().empty() ? CheckExtent::All : CheckExtent::Sample;
  }

  using Stamps = std::array<Clock::time_point, kMaxBatch + 1>;

  // Runs operations on freshly written buffers; returns the start, then the end of each.
  Stamps run_operations(BenchVariant variant, int batch, uint64_t first_salt) {
    for (int slot = 0; slot < batch; ++slot) {
      case_->write(variant, slot, first_salt + static_cast<uint64_t>(slot));
    }
    Stamps stamps;
    group_.barrier();  // all start together, whoever comes next
    stamps[0] = Clock::now();
    for (int slot = 0; slot < batch; ++slot) {
      case_->run(variant, slot);
      stamps[static_cast<size_t>(slot) + 1] = Clock::now();
    }
    group_.barrier();  // nobody checks or writes while another is still timed
    return stamps;
  }

  void run_batch(BenchVariant variant, BenchTimes& times) {
    const CheckExtent extent = extent_of(times);
    const uint64_t first_salt = next_salt_;
    next_salt_ += static_cast<uint64_t>(times.batch);
    if (options_.bytes < kWarmUpBytes) {
      run_operations(variant, times.batch, first_salt);
    }
    const uint64_t sent = group_.traffic().network_bytes_sent;
    const Stamps stamps = run_operations(variant, times.batch, first_salt);
    last_network_bytes_ = group_.traffic().network_bytes_sent - sent;
    // Ranks of one host share the clock. The largest of the negative begin is the first one's.
    std::vector<double> last_us{-us_between(Clock::time_point{}, stamps[0])};
    for (int slot = 0; slot <= times.batch; ++slot) {
      last_us.push_back(us_between(Clock::time_point{}, stamps[static_cast<size_t>(slot)]));
    }
    take_largest(group_, last_us);
    times.add({.first_us = -last_us[0], .last_us = {last_us.begin() + 1, last_us.end()}});
    for (int slot = 0; slot < times.batch; ++slot) {
      case_->check(variant, slot, first_salt + static_cast<uint64_t>(slot), extent);
    }
  }

  // Rank 0 alone calls this.
  void run_mpi_batch(MpiRanks& mpi, BenchTimes& times) {
    const auto element = static_cast<int64_t>(c10::elementSize(options_.type));
    times.add(mpi.run({.bytes = options_.bytes / element * element,
                       .element_bytes = element,
                       .batch = times.batch,
                       .warm_up = options_.bytes < kWarmUpBytes ? 1 : 0,
                       .first_salt = next_mpi_salt_,
                       .check_all = extent_of(times) == CheckExtent::All ? 1 : 0}));
    next_mpi_salt_ += times.batch;
  }

  // Rank 0 does it while the others sleep: what it measures has all cores.
  template <typename Body>
  void alone(Body&& body) {
    group_.barrier();
    if (group_.rank() == 0) {
      std::this_thread::sleep_for(kRest);
      body();
    }
    group_.barrier();
  }

  void probe() {
    alone([&] {
      if (const auto roundtrip = core_roundtrip_ns()) {
        result_.roundtrips_ns.push_back(*roundtrip);
      }
    });
  }

  double busiest_node_bytes() {
    const at::Tensor nodes = at::zeros({options_.num_nodes}, at::kDouble);
    const int64_t node = int64_t{group_.rank()} * options_.num_nodes / group_.size();
    nodes.data_ptr<double>()[node] = static_cast<double>(network_bytes_);
    group_.all_reduce(nodes);
    const auto* bytes = nodes.data_ptr<double>();
    return *std::max_element(bytes, bytes + options_.num_nodes) /
           static_cast<double>(result_.lockstep.num_operations());
  }

  Group group_;
  const BenchPeers& peers_;
  const BenchMeasureOptions options_;
  std::optional<BenchCase> case_;
  BenchResult result_;
  int64_t max_batch_ = 1;
  int64_t rounds_ = 1;                // per repeat
  std::vector<int64_t> peer_rounds_;  // of each peer; those of an MPI on rank 0
  uint64_t next_salt_ = 0;
  int64_t next_mpi_salt_ = 0;
  uint64_t network_bytes_ = 0;       // that this rank sent for BenchVariant::Lockstep
  uint64_t last_network_bytes_ = 0;  // and in the last timed batch, whosever it was
};

}  // namespace

BenchResult measure_size(Group group, const BenchPeers& peers, const BenchMeasureOptions& options) {
  return Measurement(std::move(group), peers, options).run();
}

}  // namespace lockstep
