// What a rank pays for an epoch's indices, beside torch::randperm alone.
//
//   ninja -C build/release bench_sampler && build/release/bin/bench_sampler [samples [repeats]]
//
// One rank, so that all indices are dealt; the two take turns, on one thread; medians.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/ops/randperm.h>

#include <lockstep/data/distributed_sampler.h>

namespace {

template <typename Body>
double seconds(Body body) {
  const auto begin = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t samples = argc > 1 ? std::atoll(argv[1]) : 10'000'000;
  const int repeats = argc > 2 ? std::atoi(argv[2]) : 11;
  if (samples < 1 || repeats < 1) {
    std::fprintf(stderr, "usage: bench_sampler [samples [repeats]], both at least 1\n");
    return 2;
  }
  at::set_num_threads(1);
  const lockstep::DistributedSampler sampler({.num_samples = samples});
  std::vector<double> ours;
  std::vector<double> peer;
  for (int i = 0; i <= repeats; ++i) {
    std::vector<int64_t> indices;
    at::Tensor order;
    ours.push_back(seconds([&] { indices = sampler.indices(i); }));
    peer.push_back(seconds([&] {
      order = at::randperm(samples, at::make_generator<at::CPUGeneratorImpl>(i), at::kLong);
    }));
    if (!std::equal(indices.begin(), indices.end(), order.const_data_ptr<int64_t>())) {
      std::fprintf(stderr, "bench_sampler: epoch %d differs from torch::randperm\n", i);
      return 1;
    }
  }
  ours.erase(ours.begin());  // the first of each warms the allocator
  peer.erase(peer.begin());
  std::printf("%lld indices, medians of %d: sampler %.1f ms, randperm %.1f ms, ratio %.2f\n",
              static_cast<long long>(samples), repeats, median(ours) * 1e3, median(peer) * 1e3,
              median(ours) / median(peer));
  return 0;
}
