#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

#include "device/twins/twins.h"

namespace lockstep::device {

const char* twin_embedding_forward(const LockstepEmbeddingForward* arguments, void*) {
  const LockstepEmbeddingForward& a = *arguments;
  const Elements tokens(a.tokens, a.table_type);
  const Elements positions(a.positions, a.table_type);
  const Elements segments(a.segments, a.table_type);
  const Elements out(a.out, a.type);
  for (int64_t row = 0; row < a.rows; ++row) {
    const int64_t id = a.ids[row];
    const bool is_known = id >= 0 && id < a.vocabulary;
    for (int64_t column = 0; column < a.columns; ++column) {
      const int64_t at = row * a.columns + column;
      float value = is_known ? tokens[id * a.columns + column] : 0;
      value += positions ? positions[row % a.period * a.columns + column] : 0;
      value += segments ? segments[a.segment_ids[row] * a.columns + column] : 0;
      value = dropped(a.dropout, at, value);
      out.set(at, is_known ? value : std::numeric_limits<float>::quiet_NaN());
    }
  }
  return nullptr;
}

const char* twin_embedding_sort(const LockstepEmbeddingSort* arguments, void*) {
  const LockstepEmbeddingSort& a = *arguments;
  const auto key = [&](int32_t row) {
    const int64_t id = a.ids[row];
    return id >= 0 && id < a.vocabulary ? id : a.vocabulary;
  };
  std::iota(a.order, a.order + a.rows, 0);
  std::stable_sort(a.order, a.order + a.rows,
                   [&](int32_t one, int32_t other) { return key(one) < key(other); });
  for (int64_t i = 0; i < a.rows; ++i) {
    a.sorted_ids[i] = static_cast<int32_t>(key(a.order[i]));
  }
  return nullptr;
}

const char* twin_embedding_backward(const LockstepEmbeddingBackward* arguments, void*) {
  const LockstepEmbeddingBackward& a = *arguments;
  const Elements grad_out(a.grad_out, a.type);
  std::vector<double> sum(a.columns);
  for (int64_t i = 0; i < a.rows; ++i) {
    const int64_t id = a.sorted_ids[i];
    for (int64_t column = 0; column < a.columns; ++column) {
      const int64_t at = a.order[i] * a.columns + column;
      sum[column] += dropped(a.dropout, at, grad_out[at]);
    }
    if (i + 1 < a.rows && a.sorted_ids[i + 1] == id) {
      continue;
    }
    for (int64_t column = 0; column < a.columns; ++column) {
      if (id < a.vocabulary) {
        put_sum(a.grad_table[id * a.columns + column], sum[column], /*accumulate=*/true);
      }
      sum[column] = 0;
    }
  }
  return nullptr;
}

const char* twin_position_backward(const LockstepPositionBackward* arguments, void*) {
  const LockstepPositionBackward& a = *arguments;
  const Elements grad_out(a.grad_out, a.type);
  for (int64_t i = 0; i < a.period * a.columns; ++i) {
    double sum = 0;
    for (int64_t at = i; at < a.rows * a.columns; at += a.period * a.columns) {
      sum += dropped(a.dropout, at, grad_out[at]);
    }
    put_sum(a.grad_positions[i], sum, a.accumulate != 0);
  }
  return nullptr;
}

}  // namespace lockstep::device
