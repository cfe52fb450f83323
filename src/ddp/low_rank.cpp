#include "ddp/low_rank.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <random>

#include <ATen/Dispatch.h>

#include <lockstep/base/error.h>

namespace lockstep::ddp {
namespace {

// Independent sums, added up at the end: an order that is fixed and that vector units can follow.
constexpr int64_t kLanes = 8;

template <typename T>
double dot(const T* a, const T* b, int64_t length) {
  std::array<double, kLanes> sums{};
  const int64_t whole = length - length % kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      sums[static_cast<size_t>(lane)] +=
          static_cast<double>(a[i + lane]) * static_cast<double>(b[i + lane]);
    }
  }
  for (int64_t i = whole; i < length; ++i) {
    sums[static_cast<size_t>(i - whole)] += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  }
  double sum = 0;
  for (const double part : sums) {
    sum += part;
  }
  return sum;
}

template <typename T>
void subtract_scaled(T* row, const T* other, double factor, int64_t length) {
  for (int64_t i = 0; i < length; ++i) {
    row[i] = static_cast<T>(static_cast<double>(row[i]) - factor * static_cast<double>(other[i]));
  }
}

// Gram-Schmidt, repeated while a pass takes away most of the row: what is left of a row that nearly
// depends on the others would point back along them otherwise, and count their part twice.
template <typename T>
bool orthonormalize(T* rows, int64_t rank, int64_t length, double epsilon) {
  constexpr int kMaxPasses = 4;
  for (int64_t k = 0; k < rank; ++k) {
    T* row = rows + k * length;
    const double first_norm = std::sqrt(dot(row, row, length));
    if (!std::isfinite(first_norm)) {
      return false;
    }
    double norm = first_norm;
    for (int pass = 0; pass < kMaxPasses && k > 0; ++pass) {
      const double before = norm;
      for (int64_t j = 0; j < k; ++j) {
        const T* other = rows + j * length;
        const double size = dot(other, other, length);  // 1, or 0 for a row that was dropped
        if (size > 0) {
          subtract_scaled(row, other, dot(row, other, length) / size, length);
        }
      }
      norm = std::sqrt(dot(row, row, length));
      if (norm > before / 2) {
        break;
      }
    }
    const bool is_dependent = norm <= first_norm * std::numeric_limits<T>::epsilon();
    const double scale = is_dependent ? 0 : 1 / (norm + epsilon);
    for (int64_t i = 0; i < length; ++i) {
      row[i] = is_dependent ? T(0) : static_cast<T>(static_cast<double>(row[i]) * scale);
    }
  }
  return true;
}

// Columns that are worked on together: a row of the result and of Q stay in the cache.
constexpr int64_t kBlockColumns = 1024;

template <typename T>
struct Product {
  T* matrix;
  T* error;  // may be null
  const T* p_rows;
  const T* q_rows;
  int64_t num_rows;
  int64_t num_columns;
  int64_t rank;

  void block(int64_t row, int64_t begin, int64_t end) const {
    std::array<T, kBlockColumns> sum;
    const int64_t length = end - begin;
    const T first = p_rows[row];
    for (int64_t i = 0; i < length; ++i) {
      sum[static_cast<size_t>(i)] = first * q_rows[begin + i];
    }
    for (int64_t k = 1; k < rank; ++k) {
      const T factor = p_rows[k * num_rows + row];
      const T* q_row = q_rows + k * num_columns + begin;
      for (int64_t i = 0; i < length; ++i) {
        sum[static_cast<size_t>(i)] += factor * q_row[i];
      }
    }
    T* out = matrix + row * num_columns + begin;
    if (error != nullptr) {
      T* left = error + row * num_columns + begin;
      for (int64_t i = 0; i < length; ++i) {
        left[i] = out[i] - sum[static_cast<size_t>(i)];
      }
    }
    std::copy_n(sum.begin(), length, out);
  }

  void run() const {
    for (int64_t begin = 0; begin < num_columns; begin += kBlockColumns) {
      const int64_t end = std::min(num_columns, begin + kBlockColumns);
      for (int64_t row = 0; row < num_rows; ++row) {
        block(row, begin, end);
      }
    }
  }
};

uint64_t mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15ULL;
  return hash ^ (hash >> 29);
}

uint64_t engine_seed(const RowSeed& seed) {
  uint64_t hash = mix(mix(1, seed.seed), static_cast<uint64_t>(seed.step));
  for (const char letter : seed.name) {
    hash = mix(hash, static_cast<unsigned char>(letter));
  }
  return hash;
}

}  // namespace

bool orthonormalize_rows(const at::Tensor& rows, double epsilon) {
  LOCKSTEP_CHECK(rows.dim() == 2 && rows.is_contiguous(), "rows in one piece");
  return AT_DISPATCH_FLOATING_TYPES(rows.scalar_type(), "orthonormalize_rows", [&] {
    return orthonormalize(rows.data_ptr<scalar_t>(), rows.size(0), rows.size(1), epsilon);
  });
}

void replace_by_product(const at::Tensor& matrix, const at::Tensor& error, const at::Tensor& p_rows,
                        const at::Tensor& q_rows) {
  LOCKSTEP_CHECK(matrix.is_contiguous() && p_rows.is_contiguous() && q_rows.is_contiguous(),
                 "matrices in one piece");
  LOCKSTEP_CHECK(p_rows.size(0) == q_rows.size(0) && p_rows.size(1) == matrix.size(0) &&
                     q_rows.size(1) == matrix.size(1),
                 "matrices that fit");
  AT_DISPATCH_FLOATING_TYPES(matrix.scalar_type(), "replace_by_product", [&] {
    Product<scalar_t>{.matrix = matrix.data_ptr<scalar_t>(),
                      .error = error.defined() ? error.data_ptr<scalar_t>() : nullptr,
                      .p_rows = p_rows.data_ptr<scalar_t>(),
                      .q_rows = q_rows.data_ptr<scalar_t>(),
                      .num_rows = matrix.size(0),
                      .num_columns = matrix.size(1),
                      .rank = p_rows.size(0)}
        .run();
  });
}

void fill_empty_rows(const at::Tensor& rows, const RowSeed& seed) {
  LOCKSTEP_CHECK(rows.dim() == 2 && rows.is_contiguous(), "rows in one piece");
  std::mt19937_64 engine(engine_seed(seed));
  std::normal_distribution<double> normal;
  AT_DISPATCH_FLOATING_TYPES(rows.scalar_type(), "fill_empty_rows", [&] {
    const int64_t length = rows.size(1);
    for (int64_t k = 0; k < rows.size(0); ++k) {
      scalar_t* row = rows.data_ptr<scalar_t>() + k * length;
      const double square = dot(row, row, length);
      if (square > 0 && std::isfinite(square)) {
        continue;
      }
      std::generate_n(row, length, [&] { return static_cast<scalar_t>(normal(engine)); });
    }
  });
}

}  // namespace lockstep::ddp
