#pragma once

#include <mutex>
#include <string>
#include <unordered_set>

#include <lockstep/base/error.h>
#include <lockstep/data/dataset.h>

namespace lockstep::data {

// What a dataset does about its corrupt samples. Threads: thread-safe.
class CorruptSamples {
 public:
  explicit CorruptSamples(CorruptSample rule) : rule_(rule) {}

  // To be called where the error was caught: throws it again (Fatal), or counts the sample and logs
  // the error unless that was done before (Skip).
  void take(int64_t index, const FormatError& error);

  int64_t count() const;

 private:
  const CorruptSample rule_;
  mutable std::mutex mutex_;
  std::unordered_set<int64_t> indices_;
};

}  // namespace lockstep::data
