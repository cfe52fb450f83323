#include "ddp/device/device_low_rank.h"

#include <limits>

#include <ATen/TensorOperators.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/where.h>

namespace lockstep::ddp {
namespace {

// Gram-Schmidt against all earlier rows at once loses digits where a row nearly depends on them;
// repeated twice more it does not. The host repeats it while it must, which here it cannot know.
constexpr int kPasses = 3;

double epsilon_of(at::ScalarType type) {
  return type == at::kDouble ? std::numeric_limits<double>::epsilon()
                             : std::numeric_limits<float>::epsilon();
}

at::Tensor square_sums(const at::Tensor& rows) {
  return rows.square().sum(-1, /*keepdim=*/true);
}

}  // namespace

at::Tensor queue_orthonormalize_rows(const at::Tensor& rows, double epsilon) {
  at::Tensor is_finite;
  for (int64_t k = 0; k < rows.size(0); ++k) {
    const at::Tensor place = rows.narrow(0, k, 1);
    at::Tensor row = place.to(at::kDouble);
    const at::Tensor first_norm = square_sums(row).sqrt();
    const at::Tensor row_is_finite = at::isfinite(first_norm);
    is_finite = k == 0 ? row_is_finite : is_finite.logical_and(row_is_finite);
    if (k > 0) {
      const at::Tensor others = rows.narrow(0, 0, k).to(at::kDouble);
      const at::Tensor sizes = square_sums(others);  // 1, or 0 for a row that was dropped
      const at::Tensor inverse = at::where(sizes > 0, sizes.reciprocal(), 0.0);
      for (int pass = 0; pass < kPasses; ++pass) {
        const at::Tensor shares = (others * row).sum(1, /*keepdim=*/true) * inverse;
        row = row - (others * shares).sum(0, /*keepdim=*/true);
      }
    }
    const at::Tensor norm = k == 0 ? first_norm : square_sums(row).sqrt();
    const at::Tensor is_dependent = norm <= first_norm * epsilon_of(rows.scalar_type());
    const at::Tensor scale = at::where(is_dependent, 0.0, (norm + epsilon).reciprocal());
    place.copy_(row * scale);
  }
  return is_finite.view({});
}

void queue_replace_by_product(const at::Tensor& matrix, const at::Tensor& error,
                              const at::Tensor& p_rows, const at::Tensor& q_rows,
                              const at::Tensor& is_finite) {
  if (error.defined()) {
    error.copy_(matrix);
  }
  at::Tensor product = matrix;
  at::mul_out(product, p_rows[0].unsqueeze(1), q_rows[0]);
  for (int64_t k = 1; k < p_rows.size(0); ++k) {
    product.addcmul_(p_rows[k].unsqueeze(1), q_rows[k]);
  }
  if (error.defined()) {
    error.sub_(product);
    error.masked_fill_(is_finite.logical_not(), 0);
  }
}

void queue_fill_empty_rows(const at::Tensor& rows, const at::Tensor& spare) {
  const at::Tensor squares = square_sums(rows.to(at::kDouble));
  const at::Tensor is_kept = (squares > 0).logical_and(at::isfinite(squares));
  rows.copy_(at::where(is_kept, rows, spare));
}

}  // namespace lockstep::ddp
