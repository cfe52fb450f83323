#include "bench/ddp/bench_ddp_measure.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <numeric>
#include <thread>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/norm.h>
#include <malloc.h>
#include <torch/nn/module.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

#include "base/unique_fd.h"
#include "bench/allreduce/bench_probe.h"
#include "bench/ddp/bench_ddp_variant.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kSeed = 5;
constexpr int kWarmSteps = 6;  // the peer makes its buckets anew before the second
constexpr auto kProbeRest = std::chrono::milliseconds(2);  // until the other ranks sleep
// How far averages of the same gradients may lie apart whose sums have different orders, as a part
// of their norm. On three and four ranks the worst was 1e-7.
constexpr double kMaxDifference = 1e-4;

double ms(std::chrono::nanoseconds time) {
  return std::chrono::duration<double, std::milli>(time).count();
}

// Memory of this process that no file backs, with its part of what it shares with others.
double memory_bytes() {
  ::malloc_trim(0);  // what is free is the allocator's habit, not anybody's need
  const std::string text = base::read_file("/proc/self/smaps_rollup");
  double kib = 0;
  for (const std::string name : {"\nPss_Anon:", "\nPss_Shmem:"}) {
    const size_t line = text.find(name);
    kib += line == std::string::npos ? 0 : std::strtod(text.c_str() + line + name.size(), nullptr);
  }
  return kib * 1024;
}

double norm_of(const at::Tensor& tensor) {
  return tensor.norm().item<double>();
}

class DdpMeasurement {
 public:
  DdpMeasurement(Group group, c10::intrusive_ptr<c10d::Backend> gloo, const DdpBenchPlan& plan)
      : group_(std::move(group)),
        gloo_(std::move(gloo)),
        plan_(plan),
        generator_(at::make_generator<at::CPUGeneratorImpl>(
            kSeed + static_cast<uint64_t>(group_.rank()))) {  // every rank has data of its own
    at::manual_seed(kSeed);
    first_ = make_bench_model(plan_.model);
    result_.num_ranks = group_.size();
    result_.backend = group_.backend_name();
    for (const at::Tensor& parameter : first_->parameters()) {
      result_.gradient_bytes += static_cast<int64_t>(parameter.nbytes());
    }
  }

  DdpBenchResult run() {
    prepare();
    order_.resize(variants_.size());
    std::iota(order_.begin(), order_.end(), size_t{0});
    for (int repeat = 0; repeat < plan_.repeats; ++repeat) {
      probe();
      const auto first_of = [&](int64_t which) { return which * plan_.steps / plan_.repeats; };
      run_repeat(first_of(repeat + 1) - first_of(repeat));
      check_results();
    }
    return std::move(result_);
  }

 private:
  struct Entry {
    const char* name;
    bool is_synchronised;
    StepFigures* times_ms;
    std::unique_ptr<DdpVariant> variant;
    std::vector<double> stamps_ms;  // of this repeat: start and end of each step, on this rank
  };

  // The variants, one after another, each warmed up before the next is made: so the memory that
  // one adds can be told, the others having what they need.
  void prepare() {
    std::vector<std::shared_ptr<BenchModel>> replicas;
    for (int i = 0; i < kMaxVariants; ++i) {
      replicas.push_back(replica());
    }
    add("bare", make_bare_variant(replicas[0]), result_.bare_ms);
    const double before = mean_memory_bytes();
    add("lockstep", make_lockstep_variant(replicas[1], group_), result_.lockstep_ms);
    variants_.back().is_synchronised = true;
    const double with_lockstep = mean_memory_bytes();
    result_.extra_bytes = with_lockstep - before;
    if (gloo_ != nullptr) {
      add("c10d", make_c10d_variant(replicas[2], gloo_), result_.peer_ms);
      variants_.back().is_synchronised = true;
      result_.peer_extra_bytes = mean_memory_bytes() - with_lockstep;
    }
  }

  std::shared_ptr<BenchModel> replica() const {
    const at::NoGradGuard no_grad;
    auto model = make_bench_model(plan_.model);
    const auto from = first_->parameters();
    const auto to = model->parameters();
    for (size_t i = 0; i < to.size(); ++i) {
      to[i].copy_(from[i]);
    }
    return model;  // its buffers do not depend on chance
  }

  void add(const char* name, std::unique_ptr<DdpVariant> variant, StepFigures& times_ms) {
    const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(
        kSeed + 1000 + static_cast<uint64_t>(group_.rank()));  // the same for every variant
    for (int i = 0; i < kWarmSteps; ++i) {
      variant->step(first_->make_batch(generator));
    }
    variant->drop_gradients();
    variants_.push_back({.name = name,
                         .is_synchronised = false,
                         .times_ms = &times_ms,
                         .variant = std::move(variant),
                         .stamps_ms = {}});
  }

  double mean_memory_bytes() {
    group_.barrier();
    const at::Tensor bytes = at::empty({1}, at::kDouble).fill_(memory_bytes());
    group_.all_reduce(bytes, {.op = ReduceOp::Average});
    return bytes.item<double>();
  }

  void run_repeat(int64_t num_steps) {
    std::vector<double> shares_ms;
    for (int64_t step = 0; step < num_steps; ++step) {
      const BenchBatch batch = first_->make_batch(generator_);
      for (const size_t which : order_) {
        time_step(variants_[which], batch);
      }
      const BenchShares shares = variants_[kLockstep].variant->shares();
      shares_ms.insert(shares_ms.end(), {ms(shares.copy_in), ms(shares.reduce), ms(shares.wait)});
      std::next_permutation(order_.begin(), order_.end());  // each order equally often
    }
    for (Entry& entry : variants_) {
      gather_times(entry);
    }
    gather_shares(std::move(shares_ms));
  }

  void time_step(Entry& entry, const BenchBatch& batch) {
    group_.barrier();  // all start together, whoever comes next
    const auto start = Clock::now();
    entry.variant->step(batch);
    group_.barrier();  // a bare step too ends when all ranks have made it
    const auto end = Clock::now();
    entry.stamps_ms.insert(entry.stamps_ms.end(),
                           {ms(start.time_since_epoch()), ms(end.time_since_epoch())});
  }

  // From when the last rank has begun until the last one is done: ranks of one host share the
  // clock.
  void gather_times(Entry& entry) {
    reduce(entry.stamps_ms, ReduceOp::Max);
    auto& times_ms = entry.times_ms->emplace_back();
    for (size_t i = 0; i < entry.stamps_ms.size(); i += 2) {
      times_ms.push_back(entry.stamps_ms[i + 1] - entry.stamps_ms[i]);
    }
    entry.stamps_ms.clear();
  }

  void gather_shares(std::vector<double> shares_ms) {
    reduce(shares_ms, ReduceOp::Average);
    auto& copy_in_ms = result_.copy_in_ms.emplace_back();
    auto& reduce_ms = result_.reduce_ms.emplace_back();
    auto& wait_ms = result_.wait_ms.emplace_back();
    for (size_t i = 0; i < shares_ms.size(); i += 3) {
      copy_in_ms.push_back(shares_ms[i]);
      reduce_ms.push_back(shares_ms[i + 1]);
      wait_ms.push_back(shares_ms[i + 2]);
    }
  }

  void reduce(std::vector<double>& values, ReduceOp op) {
    const auto count = static_cast<int64_t>(values.size());
    const at::Tensor tensor = at::empty({count}, at::kDouble);
    std::copy(values.begin(), values.end(), tensor.data_ptr<double>());
    group_.all_reduce(tensor, {.op = op});
    std::copy_n(tensor.data_ptr<double>(), count, values.begin());
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

  void check_results() {
    for (const Entry& entry : variants_) {
      if (entry.is_synchronised) {
        check_ranks_agree(entry);
      }
    }
    if (gloo_ != nullptr) {
      check_variants_agree();
    }
    group_.barrier();  // no figures from anybody unless all ranks found theirs right
  }

  // Every rank has rank 0's parameters, bit for bit. (Not buffers: a BatchNorm's statistics are
  // each rank's own until the next forward.)
  void check_ranks_agree(const Entry& entry) {
    for (const auto& item : entry.variant->model()->named_parameters()) {
      const at::Tensor mine = item.value().detach();
      const at::Tensor first = mine.clone();
      group_.broadcast(first);
      if (!mine.equal(first)) {
        throw InternalError(
            "{}: parameter {} of rank {} is not that of rank 0 after the same steps", entry.name,
            item.key(), group_.rank());
      }
    }
  }

  // From the same parameters, on the same batch, both get the same gradients. Comparing what they
  // learnt in all their steps would not do: a unit of a ReLU that rounding puts on the other side
  // of zero sends a ResNet elsewhere within three steps.
  void check_variants_agree() {
    DdpVariant& lockstep = *variants_[kLockstep].variant;
    DdpVariant& peer = *variants_[kPeer].variant;
    const auto ours = lockstep.model()->named_parameters();
    const auto theirs = peer.model()->parameters();
    {
      const at::NoGradGuard no_grad;
      for (size_t i = 0; i < theirs.size(); ++i) {
        ours[i].value().copy_(theirs[i]);
      }
    }
    const BenchBatch batch = first_->make_batch(generator_);
    peer.step(batch);
    lockstep.step(batch);
    double largest = 0;
    for (size_t i = 0; i < theirs.size(); ++i) {
      const at::Tensor gradient = theirs[i].grad();
      const double difference = norm_of(ours[i].value().grad() - gradient);
      const double norm = norm_of(gradient);
      if (!(difference <= kMaxDifference * norm)) {  // a NaN too
        throw InternalError(
            "lockstep and c10d made the same step, but their gradients of parameter {} differ by "
            "{:.3g}, with a norm of {:.3g}; at most {} of it is rounding",
            ours[i].key(), difference, norm, kMaxDifference);
      }
      largest = std::max(largest, norm > 0 ? difference / norm : 0);
    }
    log::debug("bench", "gradients of lockstep and c10d differ by at most {:.2g}", largest);
  }

  static constexpr size_t kLockstep = 1;  // in variants_
  static constexpr size_t kPeer = 2;
  static constexpr int kMaxVariants = 3;

  Group group_;
  const c10::intrusive_ptr<c10d::Backend> gloo_;
  const DdpBenchPlan plan_;
  const at::Generator generator_;
  std::shared_ptr<BenchModel> first_;  // keeps the first values, which all variants start from
  std::vector<Entry> variants_;
  std::vector<size_t> order_;
  DdpBenchResult result_;
};

}  // namespace

DdpBenchResult measure_ddp(Group group, c10::intrusive_ptr<c10d::Backend> gloo,
                           const DdpBenchPlan& plan) {
  return DdpMeasurement(std::move(group), std::move(gloo), plan).run();
}

}  // namespace lockstep
