#include "ddp/sparse_reduce.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <ATen/ops/zeros.h>

namespace lockstep::ddp {

at::Tensor reduce_sparse(Group& group, const at::Tensor& gradient, const at::Tensor& like,
                         int divisor) {
  const bool has_rows = gradient.defined() && gradient._nnz() > 0;
  const at::Tensor own = has_rows ? gradient.coalesce() : at::Tensor();
  const int64_t num_rows = has_rows ? own._nnz() : 0;
  const at::Tensor counts = at::zeros({group.size()}, at::kLong);
  group.all_gather(counts, at::full({1}, num_rows, at::kLong));
  const int64_t most = counts.max().item<int64_t>();

  std::vector<int64_t> row_shape = like.sizes().slice(1).vec();
  std::vector<int64_t> padded_shape = row_shape;
  padded_shape.insert(padded_shape.begin(), most);
  at::Tensor indices = at::zeros({most}, like.options().dtype(at::kLong).requires_grad(false));
  at::Tensor values = at::zeros(padded_shape, like.options().requires_grad(false));
  if (has_rows) {
    indices.narrow(0, 0, num_rows).copy_(own._indices()[0]);
    values.narrow(0, 0, num_rows).copy_(own._values());
  }
  at::Tensor all_indices = at::zeros({group.size(), most}, indices.options());
  padded_shape.insert(padded_shape.begin(), group.size());
  at::Tensor all_values = at::zeros(padded_shape, values.options());
  if (most > 0) {
    group.all_gather(all_indices, indices);
    group.all_gather(all_values, values);
  }
  std::vector<at::Tensor> index_parts;
  std::vector<at::Tensor> value_parts;
  for (int rank = 0; rank < group.size(); ++rank) {
    const int64_t rows = counts[rank].item<int64_t>();
    index_parts.push_back(all_indices[rank].narrow(0, 0, rows));
    value_parts.push_back(all_values[rank].narrow(0, 0, rows));
  }
  at::Tensor sum = at::sparse_coo_tensor(at::cat(index_parts).unsqueeze(0), at::cat(value_parts),
                                         like.sizes(), values.options().layout(at::kSparse))
                       .coalesce();
  sum._values().div_(divisor);
  return sum;
}

}  // namespace lockstep::ddp
