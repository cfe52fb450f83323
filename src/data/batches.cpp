#include <algorithm>

#include <ATen/ops/tensor.h>

#include <lockstep/base/error.h>
#include <lockstep/data/batches.h>

#include "data/columns.h"

namespace lockstep {

Batches::Batches(TensorDataset data, BatchOptions options)
    : columns_(data::checked_columns(data, "batches")), options_(std::move(options)) {
  if (options_.batch_size < 1) {
    throw UsageError("batches: batch_size is {}, it must be at least 1", options_.batch_size);
  }
  const int64_t rows = columns_.num_samples();
  for (const int64_t index : options_.indices) {
    if (index < 0 || index >= rows) {
      throw UsageError("batches: index {} is not in [0, {}), the size of the dataset", index, rows);
    }
  }
  order_ = at::tensor(options_.indices, at::kLong);
}

int64_t Batches::size() const {
  return (order_.size(0) + options_.batch_size - 1) / options_.batch_size;
}

Batch Batches::at(int64_t index) const {
  if (index < 0 || index >= size()) {
    throw UsageError("batches: batch {} is not in [0, {})", index, size());
  }
  const int64_t begin = index * options_.batch_size;
  const int64_t length = std::min(options_.batch_size, order_.size(0) - begin);
  const at::Tensor rows = order_.narrow(0, begin, length);
  return data::gathered(columns_, [&](const at::Tensor& column) {
    return column.index_select(0, rows.to(column.device()));
  });
}

}  // namespace lockstep
