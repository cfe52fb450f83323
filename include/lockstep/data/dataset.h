#pragma once

// Dataset: samples that are read by index, a batch at a time, by several threads at once. lockstep
// opens the formats of token_data.h, text_data.h, image_data.h and numpy_data.h (in lockstep/data).
// A dataset of your own is a class with two functions.
//
// Example:
//   class Squares : public lockstep::Dataset {
//    public:
//     int64_t size() const override { return 1000; }
//     lockstep::Batch batch(std::span<const lockstep::SampleKey> samples) const override {
//       const auto numbers = torch::empty({static_cast<int64_t>(samples.size()), 1});
//       for (size_t i = 0; i < samples.size(); ++i) {
//         numbers[static_cast<int64_t>(i)].fill_(samples[i].index);
//       }
//       return {.input = numbers, .target = numbers * numbers};
//     }
//   };

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <lockstep/data/batches.h>

namespace lockstep {

// Names a sample, and seeds the random numbers of its augmentation. `seed` is a function of (seed,
// epoch, index) alone, so that a resumed run sees the same pictures. See Loader::start().
struct SampleKey {
  int64_t index = 0;
  uint64_t seed = 0;
};

// What a dataset does about a sample that cannot be decoded.
enum class CorruptSample : uint8_t {
  Fatal,  // It throws a FormatError that names the sample.
  Skip,   // It fills the sample's row with zeros (or padding, for text), sets the target to
          // kCorruptTarget, counts the sample and logs it once. The batch keeps its shape, so all
          // ranks still take equally many steps.
};

// The target of a skipped sample. It equals kIgnoredLabel of lockstep/models/loss.h, which losses
// leave out.
inline constexpr int64_t kCorruptTarget = -100;

// Threads: const methods may be called concurrently; the workers of a Loader do so.
class Dataset {
 public:
  virtual ~Dataset() = default;

  // The number of samples. It never changes.
  virtual int64_t size() const = 0;

  // Reads the samples; row i of the batch belongs to samples[i]. Throws UsageError for an index
  // outside [0, size()), IoError for what cannot be read and FormatError for what is damaged. The
  // dataset is unchanged and usable after any of these.
  virtual Batch batch(std::span<const SampleKey> samples) const = 0;

  // The names of the classes by number. It is empty where the data do not name them.
  virtual std::vector<std::string> classes() const { return {}; }

  // How many different samples CorruptSample::Skip has skipped so far.
  virtual int64_t num_corrupt() const { return 0; }
};

// Makes a dataset of tensors in memory. They are shared, not copied, if they are contiguous and on
// the CPU. Throws UsageError unless all have the same number of rows.
std::shared_ptr<const Dataset> make_dataset(TensorDataset data);

}  // namespace lockstep
