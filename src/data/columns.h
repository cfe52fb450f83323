#pragma once

// The tensors of a dataset in memory.

#include <lockstep/data/batches.h>

namespace lockstep::data {

// All tensors of the dataset. Throws UsageError unless all of them have the same number of rows,
// and unless there are an input and a target or other names in their stead; `who` begins the
// message.
Batch checked_columns(const TensorDataset& data, const char* who);

}  // namespace lockstep::data
