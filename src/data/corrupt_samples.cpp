#include "data/corrupt_samples.h"

#include <lockstep/base/log.h>

namespace lockstep::data {

namespace {

constexpr size_t kMaxLines = 20;

}  // namespace

void CorruptSamples::take(int64_t index, const FormatError& error) {
  if (rule_ == CorruptSample::Fatal) {
    throw FormatError(error);
  }
  const std::lock_guard lock(mutex_);
  if (!indices_.insert(index).second) {
    return;
  }
  if (indices_.size() <= kMaxLines) {
    log::warn("data", "sample {} is skipped: {}", index, error.what());
  }
  if (indices_.size() == kMaxLines) {
    log::warn("data", "{} corrupt samples; further ones are counted and not logged", kMaxLines);
  }
}

int64_t CorruptSamples::count() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int64_t>(indices_.size());
}

}  // namespace lockstep::data
