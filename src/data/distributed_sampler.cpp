#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <numeric>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/MT19937RNGEngine.h>
#include <ATen/ops/randperm.h>

#include <lockstep/base/error.h>
#include <lockstep/data/distributed_sampler.h>

namespace lockstep {
namespace {

// From this many on torch::randperm draws 64 bits at a time.
constexpr int64_t kManySamples = std::numeric_limits<uint32_t>::max() / 20;
constexpr uint32_t kDrawsAhead = 64;

// torch::randperm(n) of a CPU generator with this seed, for n < kManySamples, at less than its
// price: the same draws and swaps, but in half the memory, and each swap's far end is fetched
// kDrawsAhead swaps before it is needed (randperm spends its time waiting for memory).
std::unique_ptr<uint32_t[]> shuffled(uint32_t n, uint64_t seed) {
  auto order = std::make_unique_for_overwrite<uint32_t[]>(n);
  std::iota(order.get(), order.get() + n, 0u);
  at::mt19937 draw(seed);
  std::array<uint32_t, kDrawsAhead> partner{};
  for (uint32_t begin = 0; begin + 1 < n; begin += kDrawsAhead) {
    const uint32_t count = std::min(kDrawsAhead, n - 1 - begin);
    for (uint32_t i = 0; i < count; ++i) {
      const uint32_t place = begin + i;
      partner[i] = place + draw() % (n - place);
      __builtin_prefetch(&order[partner[i]], 1);
    }
    for (uint32_t i = 0; i < count; ++i) {
      std::swap(order[begin + i], order[partner[i]]);
    }
  }
  return order;
}

// What lies at places begin, begin + stride, ... of the epoch's order, which repeats after n.
template <typename OrderAt>
std::vector<int64_t> deal(int64_t n, int64_t begin, int64_t stride, int64_t count,
                          OrderAt order_at) {
  std::vector<int64_t> dealt(static_cast<size_t>(count));
  int64_t place = begin;
  for (int64_t& index : dealt) {
    index = static_cast<int64_t>(order_at(place < n ? place : place % n));
    place += stride;
  }
  return dealt;
}

}  // namespace

DistributedSampler::DistributedSampler(SamplerOptions options) : options_(options) {
  if (options.num_samples < 1) {
    throw UsageError("sampler: num_samples is {}, it must be at least 1; is the dataset empty?",
                     options.num_samples);
  }
  if (options.num_ranks < 1) {
    throw UsageError("sampler: num_ranks is {}, it must be at least 1", options.num_ranks);
  }
  if (options.rank < 0 || options.rank >= options.num_ranks) {
    throw UsageError("sampler: rank {} is not in [0, {}); is RANK set?", options.rank,
                     options.num_ranks);
  }
  if (options.drop_last && options.num_samples < options.num_ranks) {
    throw UsageError(
        "sampler: {} samples for {} ranks with drop_last leave nothing to read; "
        "use fewer ranks or drop_last = false",
        options.num_samples, options.num_ranks);
  }
}

int64_t DistributedSampler::size() const {
  const int64_t n = options_.num_samples;
  const int64_t ranks = options_.num_ranks;
  return options_.drop_last ? n / ranks : (n + ranks - 1) / ranks;
}

std::vector<int64_t> DistributedSampler::indices(int64_t epoch, int64_t first) const {
  if (epoch < 0) {
    throw UsageError("sampler: epoch is {}, it must be at least 0", epoch);
  }
  const uint64_t seed = options_.seed + static_cast<uint64_t>(epoch);
  if (seed < options_.seed) {
    throw UsageError("sampler: seed {} + epoch {} does not fit into 64 bits; use a smaller seed",
                     options_.seed, epoch);
  }
  if (first < 0 || first > size()) {
    throw UsageError(
        "sampler: first is {}, it is not in [0, {}], the samples of rank {} in an epoch", first,
        size(), options_.rank);
  }
  const int64_t n = options_.num_samples;
  const int64_t stride = options_.num_ranks;
  const int64_t begin = options_.rank + first * stride;
  const int64_t count = size() - first;
  if (!options_.shuffle) {
    return deal(n, begin, stride, count, [](int64_t place) { return place; });
  }
  if (n < kManySamples) {
    const auto order = shuffled(static_cast<uint32_t>(n), seed);
    return deal(n, begin, stride, count, [&order](int64_t place) { return order[place]; });
  }
  // A generator of its own: the global one belongs to the user.
  const at::Tensor order = at::randperm(n, at::make_generator<at::CPUGeneratorImpl>(seed),
                                        at::TensorOptions().dtype(at::kLong));
  return deal(n, begin, stride, count,
              [data = order.const_data_ptr<int64_t>()](int64_t place) { return data[place]; });
}

}  // namespace lockstep
