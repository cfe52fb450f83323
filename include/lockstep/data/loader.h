#pragma once

// Loader: batches that are read while the step before them computes.
//
// Example:
//   lockstep::Loader loader(lockstep::open_tokens({"train.bin"}, {.sequence_length = 1024}),
//                           {.num_workers = 2});
//   for (int64_t epoch = 0; epoch < 3; ++epoch) {
//     loader.start(sampler.indices(epoch), /*batch_size=*/8, seed, epoch);
//     while (auto batch = loader.next()) {
//       train_on(batch->input, batch->target);
//     }
//   }
//
// A loader holds no state that must be saved. A run that was stopped after k batches of b samples
// continues with start(sampler.indices(epoch, k * b), b, seed, epoch) and gets the same bits.

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <lockstep/data/dataset.h>

namespace lockstep {

struct LoaderOptions {
  int num_workers = 2;      // threads, 0 to 256; with 0, next() reads the batches itself
  int prefetch = 4;         // >= 1: how many batches are ready or under way before workers wait
  bool pin_memory = false;  // page-locked batches, for copies to a GPU; ignored without CUDA
};

// Threads: one thread at a time uses a Loader. Its workers call Dataset::batch() concurrently.
class Loader {
 public:
  // Starts the workers. The loader shares the dataset. Throws UsageError if an option is out of
  // range.
  explicit Loader(std::shared_ptr<const Dataset> data, LoaderOptions options = {});
  ~Loader();  // waits for the batches that are being read
  Loader(Loader&&) noexcept;
  Loader& operator=(Loader&&) noexcept;

  // Sets what next() returns: these samples in this order, in batches of `batch_size`, of which the
  // last may be smaller. What is left of an earlier start() is dropped. The SampleKey::seed of each
  // sample is a function of (seed, epoch, index) alone. Throws UsageError for a batch size below 1
  // or an index outside the dataset; what was started before then goes on.
  void start(std::vector<int64_t> indices, int64_t batch_size, uint64_t seed, int64_t epoch);

  // Returns the next batch, in order, whatever the number of workers. It returns nothing at the end
  // and before the first start(). It throws what Dataset::batch() threw for this batch; the batches
  // after it are then dropped, and start() begins anew.
  std::optional<Batch> next();

  const Dataset& dataset() const;

 private:
  class Prefetcher;
  std::unique_ptr<Prefetcher> prefetcher_;
};

}  // namespace lockstep
