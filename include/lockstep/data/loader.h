#pragma once

// Batches that are made while the step before them computes.
//
//   Loader loader(open_tokens({"train.bin"}, {.sequence_length = 1024}), {.num_workers = 2});
//   for (int64_t epoch = 0; epoch < 3; ++epoch) {
//     loader.start(sampler.indices(epoch), 8, seed, epoch);
//     while (auto batch = loader.next()) { train_on(batch->input, batch->target); }
//   }
//
// Nothing in it is a state to save: a run that was stopped after k batches of b samples goes on
// with start(sampler.indices(epoch, k * b), b, seed, epoch) and gets the same bits.

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <lockstep/data/dataset.h>

namespace lockstep {

struct LoaderOptions {
  int num_workers = 2;      // threads, 0 to 256; 0: batches are made in next() itself
  int prefetch = 4;         // >= 1: batches that are ready or under way at most; workers wait then
  bool pin_memory = false;  // page-locked batches, for copies to a GPU; without CUDA: ignored
};

// Threads: one thread at a time uses a Loader; its workers call Dataset::batch() concurrently.
class Loader {
 public:
  // Throws UsageError when an option is out of range.
  explicit Loader(std::shared_ptr<const Dataset> data, LoaderOptions options = {});
  ~Loader();  // waits for the batches under way
  Loader(Loader&&) noexcept;
  Loader& operator=(Loader&&) noexcept;

  // The samples to come, in this order, in batches of `batch_size`; the last may be smaller. What
  // is left of an earlier start() is dropped. Each sample's SampleKey::seed is a pure function of
  // (seed, epoch, index). Throws UsageError for a batch size < 1 or an index outside the dataset.
  void start(std::vector<int64_t> indices, int64_t batch_size, uint64_t seed, int64_t epoch);

  // The next batch, in order whatever the number of workers; nothing at the end and before start().
  // Throws what Dataset::batch() threw for this batch; the batches behind it are dropped then.
  std::optional<Batch> next();

  const Dataset& dataset() const;

 private:
  class Prefetcher;
  std::unique_ptr<Prefetcher> prefetcher_;
};

}  // namespace lockstep
