#include "formats/weight_diff.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <unordered_map>

#include <lockstep/base/error.h>

#include "formats/dtype_values.h"
#include "formats/tensor_reader.h"

namespace lockstep::formats {

namespace {

using Index = std::unordered_map<std::string_view, const WeightEntry*>;

Index index_of(const WeightSet& set) {
  Index index;
  for (const WeightEntry& entry : set.entries) {
    index.emplace(entry.tensor.name, &entry);
  }
  return index;
}

bool is_complex(DType dtype) {
  return dtype == DType::C32 || dtype == DType::C64 || dtype == DType::C128;
}

void compare_values(const std::vector<double>& a, const std::vector<double>& b,
                    TensorDifference& difference) {
  LOCKSTEP_CHECK(a.size() == b.size(), "{} and {} values", a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]))) {
      continue;
    }
    ++difference.num_different;
    const double distance = std::abs(a[i] - b[i]);
    if (std::isnan(distance) || std::isnan(difference.max_difference)) {
      difference.max_difference = std::numeric_limits<double>::quiet_NaN();
    } else {
      difference.max_difference = std::max(difference.max_difference, distance);
    }
  }
}

// Packed types are compared byte by byte.
void compare_bits(std::span<const std::byte> a, std::span<const std::byte> b, DType dtype,
                  TensorDifference& difference) {
  LOCKSTEP_CHECK(a.size() == b.size(), "{} and {} bytes", a.size(), b.size());
  const size_t size = std::max<size_t>(static_cast<size_t>(bits_of(dtype)) / 8, 1);
  for (size_t i = 0; i < a.size(); i += size) {
    difference.num_different += std::memcmp(a.data() + i, b.data() + i, size) != 0 ? 1 : 0;
  }
}

TensorDifference compare(const WeightSet& set_a, const WeightEntry& a, const WeightSet& set_b,
                         const WeightEntry& b) {
  TensorDifference difference{.name = a.tensor.name,
                              .a = to_string(a.tensor.dtype, a.tensor.shape),
                              .b = to_string(b.tensor.dtype, b.tensor.shape)};
  const bool are_floats = is_float(a.tensor.dtype) && is_float(b.tensor.dtype) &&
                          is_complex(a.tensor.dtype) == is_complex(b.tensor.dtype);
  difference.is_compared =
      a.tensor.shape == b.tensor.shape && (a.tensor.dtype == b.tensor.dtype || are_floats);
  if (!difference.is_compared) {
    return difference;
  }
  TensorReader reader_a(*set_a.parts[a.part].source, a.tensor);
  TensorReader reader_b(*set_b.parts[b.part].source, b.tensor);
  std::vector<double> values_a;
  std::vector<double> values_b;
  for (auto piece_a = reader_a.next(); !piece_a.empty(); piece_a = reader_a.next()) {
    const auto piece_b = reader_b.next();
    if (a.tensor.dtype == b.tensor.dtype && piece_a.size() == piece_b.size() &&
        std::memcmp(piece_a.data(), piece_b.data(), piece_a.size()) == 0) {
      continue;
    }
    if (!are_floats) {
      compare_bits(piece_a, piece_b, a.tensor.dtype, difference);
      continue;
    }
    values_a.clear();
    values_b.clear();
    append_values(a.tensor.dtype, piece_a, values_a);
    append_values(b.tensor.dtype, piece_b, values_b);
    compare_values(values_a, values_b, difference);
  }
  return difference;
}

}  // namespace

WeightDiff diff_weights(const WeightSet& a, const WeightSet& b) {
  const Index index_a = index_of(a);
  const Index index_b = index_of(b);
  WeightDiff diff;
  for (const WeightEntry& entry : a.entries) {
    const auto found = index_b.find(entry.tensor.name);
    if (found == index_b.end()) {
      diff.only_a.push_back(entry.tensor.name);
      continue;
    }
    TensorDifference difference = compare(a, entry, b, *found->second);
    if (difference.a != difference.b || difference.num_different != 0) {
      diff.different.push_back(std::move(difference));
    } else {
      ++diff.num_equal;
    }
  }
  for (const WeightEntry& entry : b.entries) {
    if (!index_a.contains(entry.tensor.name)) {
      diff.only_b.push_back(entry.tensor.name);
    }
  }
  return diff;
}

}  // namespace lockstep::formats
