#include "bench_measure.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <optional>
#include <thread>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "base/cores.h"
#include "bench_probe.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kSmallBytes = 64 << 10;  // up to here an operation may be shorter than what a
                                           // rank loses on its way out of a barrier
constexpr int64_t kBatchBytes = 4 << 20;   // of one batch's buffers
constexpr int64_t kMaxBatch = 64;          // operations
constexpr int64_t kMaxPeerBatch = 8;       // the peer's small operations take milliseconds
constexpr double kMaxBatchUs = 2e5;
constexpr int64_t kLeastSmallOperations = 1000;
constexpr double kSmallBudgetUs = 4e6;  // even they may be slow: between nodes, or on a busy host
constexpr int64_t kLeastOperations = 30;
constexpr int64_t kMaxRounds = 66;       // per repeat
constexpr double kRepeatBudgetUs = 6e5;  // for one variant at one size, if the least counts allow
constexpr int kProbesPerRepeat = 4;
constexpr auto kProbeRest = std::chrono::milliseconds(2);  // until the other ranks sleep

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
  Measurement(Group group, const BenchPeer& peer, const BenchMeasureOptions& options)
      : group_(std::move(group)), has_peer_(peer != nullptr), options_(options) {
    const int64_t fitting = kBatchBytes / std::max<int64_t>(1, options_.bytes);
    max_batch_ = options_.bytes > kSmallBytes ? 1 : std::clamp<int64_t>(fitting, 1, kMaxBatch);
    result_.bytes = options_.bytes;
    case_.emplace(group_, peer,
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
    result_.lockstep.batch = result_.staged.batch = result_.limit.batch = static_cast<int>(batch);
    const double warm_us =
        std::max(warm_up(BenchVariant::Lockstep, batch), warm_up(BenchVariant::Staged, batch));
    warm_up(BenchVariant::Limit, batch);
    rounds_ = std::max(per_repeat(least_operations(warm_us), batch),
                       std::min(kMaxRounds, affordable(warm_us * static_cast<double>(batch))));
    if (has_peer_) {
      const double peer_us = warm_up(BenchVariant::Peer, 1);
      const int64_t peer_batch = batch_for(peer_us, std::min(batch, kMaxPeerBatch));
      result_.peer.batch = static_cast<int>(peer_batch);
      const double peer_batch_us = warm_up(BenchVariant::Peer, peer_batch) * peer_batch;
      const int64_t least_rounds = per_repeat(kLeastOperations, peer_batch);
      rounds_ = std::max(rounds_, least_rounds);
      peer_rounds_ = std::min(rounds_, std::max(least_rounds, affordable(peer_batch_us)));
    }
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

  // Batches of each repeat that make up so many operations in all.
  int64_t per_repeat(int64_t operations, int64_t batch) const {
    const int64_t step = batch * options_.repeats;
    return (operations + step - 1) / step;
  }

  static int64_t affordable(double batch_us) {
    return static_cast<int64_t>(kRepeatBudgetUs / batch_us);
  }

  // Microseconds per operation once warm; the same on all ranks.
  double warm_up(BenchVariant variant, int64_t batch) {
    BenchTimes times{.batches_us = {{}}, .operations_us = {}, .batch = static_cast<int>(batch)};
    run_batch(variant, times);
    run_batch(variant, times);
    return std::max(times.batches_us[0].back(), 1e-3);
  }

  void run_repeat() {
    for (BenchTimes* times : {&result_.lockstep, &result_.staged, &result_.limit}) {
      times->batches_us.emplace_back();
    }
    if (has_peer_) {
      result_.peer.batches_us.emplace_back();
    }
    for (int64_t round = 0; round < rounds_; ++round) {
      const auto is_turn = [&](int64_t times) {  // `times` turns, evenly over the rounds
        return (round + 1) * times / rounds_ > round * times / rounds_;
      };
      if (is_turn(std::min<int64_t>(rounds_, kProbesPerRepeat))) {
        probe();
      }
      const uint64_t sent = group_.traffic().network_bytes_sent;
      run_batch(BenchVariant::Lockstep, result_.lockstep);
      network_bytes_ += group_.traffic().network_bytes_sent - sent;
      if (has_peer_ && is_turn(peer_rounds_)) {
        run_batch(BenchVariant::Peer, result_.peer);
      }
      run_batch(BenchVariant::Staged, result_.staged);
      run_batch(BenchVariant::Limit, result_.limit);
    }
  }

  void run_batch(BenchVariant variant, BenchTimes& times) {
    // All of a result is looked at once per repeat, a sample of it otherwise.
    const CheckExtent extent =
        times.batches_us.back().empty() ? CheckExtent::All : CheckExtent::Sample;
    const uint64_t first_salt = next_salt_;
    next_salt_ += static_cast<uint64_t>(times.batch);
    for (int slot = 0; slot < times.batch; ++slot) {
      case_->write(variant, slot, first_salt + static_cast<uint64_t>(slot));
    }
    std::array<Clock::time_point, kMaxBatch + 1> stamps;
    group_.barrier();  // all start together, whoever comes next
    stamps[0] = Clock::now();
    for (int slot = 0; slot < times.batch; ++slot) {
      case_->run(variant, slot);
      stamps[static_cast<size_t>(slot) + 1] = Clock::now();
    }
    group_.barrier();  // nobody checks or writes while another is still timed
    // From when the last rank has come until the last one has it: ranks of one host share the
    // clock. How late a rank leaves the barrier above is not the operation's time.
    std::vector<double> last_us;
    for (int slot = 0; slot <= times.batch; ++slot) {
      last_us.push_back(us_between(Clock::time_point{}, stamps[static_cast<size_t>(slot)]));
    }
    // The memory pass waits for nobody: ranks that share cores begin it one after the other, and it
    // runs from when the first one does.
    const bool is_from_first = variant == BenchVariant::Limit && group_.size() > num_usable_cores();
    const double begin_sign = is_from_first ? -1 : 1;
    last_us[0] *= begin_sign;
    take_largest(group_, last_us);
    last_us[0] *= begin_sign;
    for (int slot = 0; slot < times.batch; ++slot) {
      const auto i = static_cast<size_t>(slot);
      times.operations_us.push_back(last_us[i + 1] - last_us[i]);
      case_->check(variant, slot, first_salt + i, extent);
    }
    times.batches_us.back().push_back((last_us.back() - last_us.front()) / times.batch);
  }

  void probe() {
    group_.barrier();
    if (group_.rank() == 0) {
      std::this_thread::sleep_for(kProbeRest);
      if (const auto roundtrip = core_roundtrip_ns()) {
        result_.roundtrips_ns.push_back(*roundtrip);
      }
    }
    group_.barrier();
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
  const bool has_peer_;
  const BenchMeasureOptions options_;
  std::optional<BenchCase> case_;
  BenchResult result_;
  int64_t max_batch_ = 1;
  int64_t rounds_ = 1;  // per repeat
  int64_t peer_rounds_ = 0;
  uint64_t next_salt_ = 0;
  uint64_t network_bytes_ = 0;  // that this rank sent for BenchVariant::Lockstep
};

}  // namespace

BenchResult measure_size(Group group, const BenchPeer& peer, const BenchMeasureOptions& options) {
  return Measurement(std::move(group), peer, options).run();
}

}  // namespace lockstep
