#include "bench/load/bench_load_measure.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <fcntl.h>
#include <filesystem>
#include <map>
#include <memory>
#include <unistd.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <malloc.h>

#include <lockstep/base/error.h>

#include "base/unique_fd.h"
#include "bench/load/bench_load_file.h"
#include "bench/load/bench_load_peer.h"
#include "formats/archive/crc32.h"

namespace lockstep {
namespace {

constexpr LoadMode kModes[] = {LoadMode::Each, LoadMode::Rank0, LoadMode::Cooperative};

int64_t now_ns() {
  return std::chrono::steady_clock::now().time_since_epoch().count();
}

int64_t cpu_ns() {  // of all threads of this process
  timespec time{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return time.tv_sec * 1'000'000'000 + time.tv_nsec;
}

// "VmHWM:  123 kB" of a file of /proc: the number behind a name.
int64_t number_in(const std::string& path, const std::string& name) {
  const std::string text = base::read_file(path);
  const size_t at = text.find(name);
  return at == std::string::npos ? 0 : std::strtoll(text.c_str() + at + name.size(), nullptr, 10);
}

int64_t resident_bytes(const char* name) {  // VmRSS, VmHWM
  return number_in("/proc/self/status", std::string(name) + ":") << 10;
}

int64_t storage_bytes_read() {
  return number_in("/proc/self/io", "\nread_bytes:");
}

void reset_peak() {
  const base::UniqueFd fd = base::open_file("/proc/self/clear_refs", O_WRONLY);
  base::write_all(fd.get(), "5", 1);
}

// The file, on rank 0; gone with the object.
class BenchFile {
 public:
  BenchFile(Group& group, const LoadBenchPlan& plan)
      : is_owner_(group.rank() == 0),
        path_((std::filesystem::path(plan.folder) /
               ("lockstep-bench-load." + std::to_string(::getppid()) +
                (plan.format == "torch" ? ".pth" : ".safetensors")))
                  .string()) {}
  ~BenchFile() {
    if (is_owner_) {
      ::unlink(path_.c_str());
    }
  }
  BenchFile(const BenchFile&) = delete;
  BenchFile& operator=(const BenchFile&) = delete;

  const std::string& path() const { return path_; }

 private:
  bool is_owner_;
  std::string path_;
};

class LoadMeasurement {
 public:
  LoadMeasurement(Group group, const LoadBenchPlan& plan)
      : group_(std::move(group)), plan_(plan), file_(group_, plan) {
    // Every model gets memory of its own from the kernel, as in a process that has just started.
    ::mallopt(M_MMAP_THRESHOLD, 128 << 10);
    weights_.tensors = gpt2_shapes(plan.size_bytes);
    weights_.crcs.resize(weights_.tensors.size());
    if (group_.rank() == 0) {
      weights_ = write_bench_weights(file_.path(), plan.format, plan.size_bytes);
    }
    share_crcs();
    result_.num_ranks = group_.size();
    result_.backend = group_.backend_name();
    result_.num_tensors = static_cast<int64_t>(weights_.tensors.size());
    for (const LoadMode mode : kModes) {
      result_.modes.push_back({.mode = mode});
    }
    if (plan.has_peer()) {
      peer_ = std::make_unique<LoadPeer>(plan, file_.path());
      if (sum(peer_->is_present() ? 1 : 0) < group_.size()) {
        peer_.reset();
      }
    }
  }

  LoadBenchResult run() {
    choose();
    for (int repeat = -1; repeat < plan_.repeats; ++repeat) {  // the first warms up
      is_counted_ = repeat >= 0;
      for (size_t i = 0; i < result_.modes.size(); ++i) {
        const auto turn = static_cast<size_t>(repeat + 1);
        measure_mode(result_.modes[(turn + i) % result_.modes.size()]);
      }
      measure_sequential();
      if (peer_) {
        measure_peer();
      }
    }
    return std::move(result_);
  }

 private:
  void share_crcs() {
    const auto count = static_cast<int64_t>(weights_.crcs.size());
    const at::Tensor crcs = at::empty({count}, at::kLong);
    std::copy(weights_.crcs.begin(), weights_.crcs.end(), crcs.mutable_data_ptr<int64_t>());
    group_.broadcast(crcs);
    const auto* data = crcs.const_data_ptr<int64_t>();
    for (size_t i = 0; i < weights_.crcs.size(); ++i) {
      weights_.crcs[i] = static_cast<uint32_t>(data[i]);
    }
  }

  int64_t reduce(int64_t value, ReduceOp op) {
    const at::Tensor tensor = at::empty({1}, at::kLong);
    *tensor.mutable_data_ptr<int64_t>() = value;
    group_.all_reduce(tensor, {.op = op});
    return *tensor.const_data_ptr<int64_t>();
  }
  int64_t sum(int64_t value) { return reduce(value, ReduceOp::Sum); }
  int64_t most(int64_t value) { return reduce(value, ReduceOp::Max); }

  // From when the last rank has begun until the last one is done: ranks of one host share the
  // clock.
  double seconds(int64_t start_ns, int64_t end_ns) {
    return static_cast<double>(most(end_ns) - most(start_ns)) / 1e9;
  }

  void add(Seconds& list, double value) {
    if (is_counted_) {
      list.push_back(value);
    }
  }

  std::vector<WeightTarget> make_parameters() const {
    std::vector<WeightTarget> parameters;
    for (const formats::TensorInfo& tensor : weights_.tensors) {
      at::Tensor parameter = plan_.fresh_memory ? at::empty(tensor.shape, at::kHalf)
                                                : at::ones(tensor.shape, at::kHalf);
      parameters.push_back({tensor.name, parameter.set_requires_grad(true)});
    }
    return parameters;
  }

  void check(const std::vector<WeightTarget>& parameters) {
    for (size_t i = 0; i < parameters.size(); ++i) {
      const at::Tensor& tensor = parameters[i].tensor;
      const auto* data = static_cast<const std::byte*>(tensor.const_data_ptr());
      if (formats::crc32(0, {data, tensor.nbytes()}) != weights_.crcs[i]) {
        throw InternalError("parameter {} of rank {} is not what was written", parameters[i].name,
                            group_.rank());
      }
    }
  }

  void choose() {
    Weights weights = Weights::open(file_.path(), group_);
    result_.file_bytes = weights.file_bytes();
    const auto parameters = make_parameters();
    const LoadReport report = load_weights(weights, parameters, group_);
    result_.chosen = report.mode;
    result_.reason = report.reason;
  }

  void measure_mode(LoadModeFigures& figures) {
    if (group_.rank() == 0) {
      result_.cached_fraction = std::max(result_.cached_fraction, drop_from_cache(file_.path()));
    }
    add(figures.cold_s, measure_load(figures, true));
    if (group_.rank() == 0) {
      bring_into_cache(file_.path());
    }
    add(figures.warm_s, measure_load(figures, false));
  }

  double measure_load(LoadModeFigures& figures, bool is_cold) {
    const auto parameters = make_parameters();
    int64_t untouched_bytes = 0;  // which the load itself makes resident
    for (const WeightTarget& parameter : parameters) {
      untouched_bytes += plan_.fresh_memory ? static_cast<int64_t>(parameter.tensor.nbytes()) : 0;
    }
    reset_peak();
    const int64_t before = resident_bytes("VmRSS");
    const int64_t read_before = storage_bytes_read();
    group_.barrier();
    const int64_t cpu_before = cpu_ns();
    const int64_t start_ns = now_ns();
    Weights weights = Weights::open(file_.path(), group_);
    const LoadReport report = load_weights(weights, parameters, group_, {.mode = figures.mode});
    const int64_t end_ns = now_ns();
    const double cpu_s = static_cast<double>(sum(cpu_ns() - cpu_before)) / 1e9;
    const int64_t extra = resident_bytes("VmHWM") - before - untouched_bytes;
    const int64_t stored = sum(storage_bytes_read() - read_before);
    if (is_cold) {
      figures.bytes_read = static_cast<uint64_t>(sum(static_cast<int64_t>(report.bytes_read)));
      figures.storage_bytes_read =
          std::max(figures.storage_bytes_read, static_cast<uint64_t>(stored));
    }
    if (!is_cold) {
      add(figures.warm_cpu_s, cpu_s);
    }
    if (is_counted_) {
      figures.extra_peak_bytes_per_rank = std::max(figures.extra_peak_bytes_per_rank, most(extra));
    }
    check(parameters);
    return seconds(start_ns, end_ns);
  }

  void measure_sequential() {
    if (group_.rank() == 0) {
      drop_from_cache(file_.path());
      add(result_.sequential_cold_s, read_sequentially(file_.path(), false));
      drop_from_cache(file_.path());
      try {
        add(result_.sequential_direct_s, read_sequentially(file_.path(), true));
      } catch (const IoError&) {
        result_.sequential_direct_s.clear();
      }
      bring_into_cache(file_.path());
    }
    group_.barrier();
  }

  void measure_peer() {
    peer_->prepare();
    group_.barrier();
    const LoadPeer::Load load = peer_->load(!is_counted_);
    const double value = seconds(load.start_ns, load.end_ns);
    add(result_.peer_warm_s, value);
    add(result_.peer_warm_cpu_s, static_cast<double>(sum(load.cpu_ns)) / 1e9);
    if (!is_counted_) {
      uint32_t crc = 0;
      for (size_t i = 0; i < weights_.crcs.size(); ++i) {
        const formats::TensorInfo& tensor = weights_.tensors[i];
        crc = formats::crc32_combine(crc, weights_.crcs[i],
                                     *formats::checked_bytes(tensor.dtype, tensor.shape));
      }
      if (load.crc != crc) {
        throw InternalError("the peer of rank {} loaded something else", group_.rank());
      }
    }
  }

  Group group_;
  const LoadBenchPlan plan_;
  BenchFile file_;
  BenchWeights weights_;
  std::unique_ptr<LoadPeer> peer_;
  bool is_counted_ = false;
  LoadBenchResult result_;
};

}  // namespace

LoadBenchResult measure_load(Group group, const LoadBenchPlan& plan) {
  return LoadMeasurement(std::move(group), plan).run();
}

}  // namespace lockstep
