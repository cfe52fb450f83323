#include "data/sample_keys.h"

#include <lockstep/base/error.h>

#include "base/dice.h"

namespace lockstep::data {

namespace {

void check_index(int64_t index, int64_t size) {
  if (index < 0 || index >= size) {
    throw UsageError("dataset: index {} is not in [0, {}), its size", index, size);
  }
}

}  // namespace

void check_indices(std::span<const int64_t> indices, int64_t size) {
  for (const int64_t index : indices) {
    check_index(index, size);
  }
}

void check_samples(std::span<const SampleKey> samples, int64_t size) {
  for (const SampleKey& sample : samples) {
    check_index(sample.index, size);
  }
}

std::vector<SampleKey> make_sample_keys(std::span<const int64_t> indices, uint64_t seed,
                                        int64_t epoch) {
  const uint64_t epoch_seed = base::Dice(seed, static_cast<uint64_t>(epoch)).bits();
  std::vector<SampleKey> keys;
  keys.reserve(indices.size());
  for (const int64_t index : indices) {
    keys.push_back(
        {.index = index, .seed = base::Dice(epoch_seed, static_cast<uint64_t>(index)).bits()});
  }
  return keys;
}

}  // namespace lockstep::data
