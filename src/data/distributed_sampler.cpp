#include <algorithm>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/randperm.h>

#include <lockstep/base/error.h>
#include <lockstep/data/distributed_sampler.h>

namespace lockstep {
namespace {

std::vector<int64_t> order_of(const SamplerOptions& options, int64_t epoch) {
  const int64_t n = options.num_samples;
  std::vector<int64_t> order(static_cast<size_t>(n));
  if (!options.shuffle) {
    for (int64_t i = 0; i < n; ++i) {
      order[static_cast<size_t>(i)] = i;
    }
    return order;
  }
  // A generator of its own: the global one belongs to the user, and two ranks may have used it
  // differently.
  const auto generator =
      at::make_generator<at::CPUGeneratorImpl>(options.seed + static_cast<uint64_t>(epoch));
  const at::Tensor shuffled = at::randperm(n, generator, at::TensorOptions().dtype(at::kLong));
  std::copy_n(shuffled.const_data_ptr<int64_t>(), n, order.begin());
  return order;
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

std::vector<int64_t> DistributedSampler::indices(int64_t epoch) const {
  if (epoch < 0) {
    throw UsageError("sampler: epoch is {}, it must be at least 0", epoch);
  }
  const std::vector<int64_t> order = order_of(options_, epoch);
  std::vector<int64_t> mine(static_cast<size_t>(size()));
  for (size_t i = 0; i < mine.size(); ++i) {
    const size_t place =
        i * static_cast<size_t>(options_.num_ranks) + static_cast<size_t>(options_.rank);
    mine[i] = order[place % order.size()];  // the tail wraps around, more than once if need be
  }
  return mine;
}

}  // namespace lockstep
