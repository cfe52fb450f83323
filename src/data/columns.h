#pragma once

// The tensors of a dataset in memory.

#include <lockstep/data/batches.h>

namespace lockstep::data {

// All tensors of the dataset. Throws UsageError unless all of them have the same number of rows,
// and unless there are an input and a target or other names in their stead; `who` begins the
// message.
Batch checked_columns(const TensorDataset& data, const char* who);

// Rows of every column, each name's gathered by itself: a tensor that is two columns becomes two.
Batch gathered(const Batch& columns, const Batch::Change& gather);

}  // namespace lockstep::data
