#pragma once

// A dataset in memory, cut into batches.
//
//   for (auto batch : lockstep::batches(data, {.indices = sampler.indices(epoch), .batch_size =
//   32})) {
//     train_on(batch.input, batch.target);
//   }

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep {

// Samples that lie in memory: row i of `input` belongs to row i of `target`.
struct TensorDataset {
  at::Tensor input;
  at::Tensor target;

  int64_t size() const { return input.size(0); }
};

struct Batch {
  at::Tensor input;
  at::Tensor target;
};

struct BatchOptions {
  std::vector<int64_t> indices;  // REQUIRED: the samples, in order (a DistributedSampler's)
  int64_t batch_size = 1;        // > 0; the last batch may be smaller
};

// A range of batches; each is gathered when it is reached. The dataset's tensors are shared, not
// copied.
class Batches {
 public:
  // Throws UsageError for a batch size < 1 or an index outside the dataset.
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
  int64_t size() const;
  Batch at(int64_t index) const;

 private:
  TensorDataset data_;
  BatchOptions options_;
  at::Tensor order_;  // the indices as a tensor
};

// As in the example above.
inline Batches batches(TensorDataset data, BatchOptions options) {
  return Batches(std::move(data), std::move(options));
}

}  // namespace lockstep
