#include "data/columns.h"

#include <lockstep/base/error.h>

namespace lockstep::data {

Batch checked_columns(const TensorDataset& data, const char* who) {
  Batch columns = data.columns();
  if (columns.more.empty() && (!data.input.defined() || !data.target.defined())) {
    throw UsageError(
        "{}: input and target must be tensors with the same number of rows, and the {} is "
        "undefined; a task that reads other tensors names them in `more`",
        who, data.input.defined() ? "target" : "input");
  }
  std::string first_name;
  int64_t rows = 0;
  columns.for_each_tensor([&](const std::string& name, const at::Tensor& column) {
    if (column.dim() < 1) {
      throw UsageError("{}: \"{}\" is a single number, but row i of it must belong to sample i",
                       who, name);
    }
    if (first_name.empty()) {
      first_name = name;
      rows = column.size(0);
    }
    if (column.size(0) != rows) {
      throw UsageError(
          "{}: all tensors must have the same number of rows, but \"{}\" has {} and \"{}\" has {}",
          who, first_name, rows, name, column.size(0));
    }
  });
  return columns;
}

Batch gathered(const Batch& columns, const Batch::Change& gather) {
  Batch rows;
  columns.for_each_tensor(
      [&](const std::string& name, const at::Tensor& column) { rows.set(name, gather(column)); });
  return rows;
}

}  // namespace lockstep::data
