#pragma once

// What pictures from folders and from shards have in common.

#include <span>
#include <string>

#include <lockstep/data/image_data.h>

#include "data/corrupt_samples.h"

namespace lockstep::data {

// Throws UsageError.
void check_image_options(const ImageOptions& options);

// The bytes of a sample's file and its class.
struct ImageSource {
  std::string name;  // for messages
  std::string bytes;
  int64_t label = 0;
};

class ImageDataset : public Dataset {
 public:
  explicit ImageDataset(ImageOptions options)
      : options_(std::move(options)), corrupt_(options_.on_corrupt) {}

  int64_t num_corrupt() const override { return corrupt_.count(); }
  Batch batch(std::span<const SampleKey> samples) const override {
    return batch(samples, options_.augment);
  }
  Batch batch(std::span<const SampleKey> samples, bool augment) const;

 protected:
  const ImageOptions& options() const { return options_; }

 private:
  // Throws FormatError for a sample that is corrupt without being decoded.
  virtual ImageSource read(int64_t index) const = 0;
  virtual bool is_remote() const = 0;

  int64_t decode(const SampleKey& sample, const ImageSource& source, bool augment,
                 std::span<float> out) const;

  const ImageOptions options_;
  mutable CorruptSamples corrupt_;
};

// The same pictures without augmentation, to judge by; what is no ImageDataset as it is.
std::shared_ptr<const Dataset> without_augmentation(std::shared_ptr<const Dataset> data);

}  // namespace lockstep::data
