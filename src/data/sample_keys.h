#pragma once

#include <lockstep/data/dataset.h>

namespace lockstep::data {

// Throws UsageError for an index that is not in [0, size).
void check_indices(std::span<const int64_t> indices, int64_t size);
void check_samples(std::span<const SampleKey> samples, int64_t size);

// A key for each index, with a seed that is a pure function of (seed, epoch, index).
std::vector<SampleKey> make_sample_keys(std::span<const int64_t> indices, uint64_t seed,
                                        int64_t epoch);

}  // namespace lockstep::data
