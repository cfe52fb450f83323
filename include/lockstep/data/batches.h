#pragma once

// A dataset in memory, cut into batches.
//
// Example:
//   lockstep::BatchOptions options{.indices = sampler.indices(epoch), .batch_size = 32};
//   for (auto batch : lockstep::batches(data, options)) {
//     train_on(batch.input, batch.target);
//   }
//
// Loader (lockstep/data/loader.h) reads batches of other datasets ahead, on threads of its own.

#include <cstdint>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <lockstep/data/batch.h>

namespace lockstep {

// Samples in memory: row i of each tensor belongs to sample i. `input` and `target` may be left
// out where `more` has what the task reads.
//
// Example:
//   lockstep::TensorDataset texts{
//       .input = ids, .target = labels, .more = {{"attention_mask", mask}}};
//   for (auto batch : lockstep::batches(texts, {.indices = sampler.indices(epoch)})) {
//     train_on(batch["attention_mask"] * batch.input, batch.target);
//   }
struct TensorDataset {
  at::Tensor input = {};
  at::Tensor target = {};
  TensorMap more = {};

  // All samples as one batch, which shares the tensors.
  Batch columns() const { return {input, target, more}; }

  // Batch::num_samples().
  int64_t size() const { return columns().num_samples(); }
};

struct BatchOptions {
  std::vector<int64_t> indices;  // REQUIRED: the samples in order, from a DistributedSampler
  int64_t batch_size = 1;        // > 0; the last batch may be smaller
};

// A range of batches. Each batch is a new tensor, gathered when it is reached. The range shares the
// dataset's tensors and does not copy them; its iterators point into the range and must not outlive
// it.
// Threads: const methods may be called concurrently.
class Batches {
 public:
  // Throws UsageError if the tensors have different numbers of rows or the dataset has none, for a
  // batch size below 1 and for an index outside the dataset.
  Batches(TensorDataset data, BatchOptions options);

  class Iterator {
   public:
    Iterator(const Batches* batches, int64_t index) : batches_(batches), index_(index) {}
    Batch operator*() const { return batches_->at(index_); }
    Iterator& operator++() {
      ++index_;
      return *this;
    }
    bool operator==(const Iterator& other) const { return index_ == other.index_; }

   private:
    const Batches* batches_;
    int64_t index_;
  };

  Iterator begin() const { return {this, 0}; }
  Iterator end() const { return {this, size()}; }

  // The number of batches.
  int64_t size() const;

  // Gathers one batch. Throws UsageError for an index outside [0, size()).
  Batch at(int64_t index) const;

 private:
  Batch columns_;
  BatchOptions options_;
  at::Tensor order_;  // the indices as a tensor
};

// Makes the range. See the example above.
inline Batches batches(TensorDataset data, BatchOptions options) {
  return Batches(std::move(data), std::move(options));
}

}  // namespace lockstep
