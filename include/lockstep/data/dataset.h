#pragma once

// Samples that are read by index, a batch at a time, by several threads at once. The data that
// lockstep reads are opened by lockstep/data/token_data.h, text_data.h, image_data.h and
// numpy_data.h; a user's own are a class with two functions:
//
//   class Squares : public lockstep::Dataset {
//    public:
//     int64_t size() const override { return 1000; }
//     lockstep::Batch batch(std::span<const lockstep::SampleKey> samples) const override { ... }
//   };

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <lockstep/data/batches.h>

namespace lockstep {

// Which sample, and the dice for its augmentation: `seed` comes from (seed, epoch, index) and from
// nothing else, so that a run that is resumed sees the same pictures. See Loader::start().
struct SampleKey {
  int64_t index = 0;
  uint64_t seed = 0;
};

// What to do about a sample that cannot be decoded.
enum class CorruptSample : uint8_t {
  Fatal,  // FormatError, which names it
  Skip,   // its row is zeros (of text: padding) and its target kCorruptTarget; it is counted and
          // logged once. The batch keeps its shape, so that all ranks take equally many steps
};

// The target of a sample that was skipped: kIgnoredLabel of lockstep/models/loss.h, which losses
// leave out.
inline constexpr int64_t kCorruptTarget = -100;

// Threads: const methods may be called concurrently.
class Dataset {
 public:
  virtual ~Dataset() = default;

  virtual int64_t size() const = 0;

  // Row i belongs to samples[i]. Throws UsageError for an index outside [0, size()), IoError for
  // what cannot be read and FormatError for what is damaged.
  virtual Batch batch(std::span<const SampleKey> samples) const = 0;

  // The name of class i at place i; empty where the data do not name them.
  virtual std::vector<std::string> classes() const { return {}; }

  // Different samples that were skipped so far, by CorruptSample::Skip.
  virtual int64_t num_corrupt() const { return 0; }
};

// Tensors in memory, which are shared, not copied, if they are contiguous and on the CPU. Throws
// UsageError unless both have the same number of rows.
std::shared_ptr<const Dataset> make_dataset(TensorDataset data);

}  // namespace lockstep
