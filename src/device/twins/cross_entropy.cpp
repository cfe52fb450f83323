#include <algorithm>
#include <cmath>
#include <limits>

#include "device/twins/twins.h"

namespace lockstep::device {
namespace {

// log of the sum of the exponentials of a row.
double log_sum(const Elements& logits, int64_t begin, int64_t classes) {
  double most = -std::numeric_limits<double>::infinity();
  for (int64_t i = 0; i < classes; ++i) {
    most = std::max(most, static_cast<double>(logits[begin + i]));
  }
  double sum = 0;
  for (int64_t i = 0; i < classes; ++i) {
    sum += std::exp(logits[begin + i] - most);
  }
  return most + std::log(sum);
}

}  // namespace

const char* twin_cross_entropy(const LockstepCrossEntropy* arguments, void*) {
  const LockstepCrossEntropy& a = *arguments;
  const Elements logits(a.logits, a.type);
  const auto number =
      static_cast<double>(a.rows - std::count(a.labels, a.labels + a.rows, a.ignored));
  const double scale = (a.scale ? *a.scale : 1.0) / number;
  double sum = 0;
  for (int64_t row = 0; row < a.rows; ++row) {
    const int64_t begin = row * a.stride;
    const int64_t label = a.labels[row];
    const bool counts = label != a.ignored;
    const double total = counts ? log_sum(logits, begin, a.classes) : 0;
    double loss = 0;
    if (counts) {
      loss = label >= 0 && label < a.classes ? total - logits[begin + label]
                                             : std::numeric_limits<double>::quiet_NaN();
    }
    a.losses[row] = static_cast<float>(loss);
    sum += a.losses[row];
    for (int64_t i = 0; a.gradient && i < a.stride; ++i) {
      double gradient = 0;
      if (counts && i < a.classes) {
        gradient = (std::exp(logits[begin + i] - total) - (i == label ? 1 : 0)) * scale;
      }
      logits.set(begin + i, static_cast<float>(gradient));
    }
  }
  a.result[0] = static_cast<float>(sum / number);
  a.result[1] = static_cast<float>(number);
  return nullptr;
}

const char* twin_scale(const LockstepScale* arguments, void*) {
  const LockstepScale& a = *arguments;
  const Elements data(a.data, a.type);
  for (int64_t i = 0; *a.factor != 1 && i < a.count; ++i) {
    data.set(i, data[i] * *a.factor);
  }
  return nullptr;
}

}  // namespace lockstep::device
