#include "data/image_batch.h"

#include <algorithm>

#include <ATen/ops/empty.h>

#include "base/dice.h"
#include "data/sample_keys.h"
#include "pictures/picture_crop.h"
#include "pictures/picture_decoder.h"
#include "pictures/picture_resize.h"
#include "storage/parallel_read.h"

namespace lockstep::data {

namespace {

constexpr int64_t kMaxSize = 4096;

}  // namespace

void check_image_options(const ImageOptions& options) {
  if (options.size < 1 || options.size > kMaxSize) {
    throw UsageError("images: size is {}, it must be from 1 to {}", options.size, kMaxSize);
  }
  for (const float value : options.std) {
    if (!(value > 0)) {
      throw UsageError("images: a std of {} is not above 0", value);
    }
  }
}

Batch ImageDataset::batch(std::span<const SampleKey> samples, bool augment) const {
  check_samples(samples, size());
  const auto rows = static_cast<int64_t>(samples.size());
  Batch batch{at::empty({rows, 3, options_.size, options_.size}, at::kFloat),
              at::empty({rows}, at::kLong)};
  const auto values = static_cast<size_t>(3 * options_.size * options_.size);
  auto* const pixels = batch.input.mutable_data_ptr<float>();
  auto* const labels = batch.target.mutable_data_ptr<int64_t>();
  storage::for_each_parallel(samples.size(), is_remote() ? storage::kRemoteReads : 1,
                             [&](size_t i) {
                               const std::span out(pixels + i * values, values);
                               try {
                                 const ImageSource source = read(samples[i].index);
                                 labels[i] = decode(samples[i], source, augment, out);
                               } catch (const FormatError& error) {
                                 corrupt_.take(samples[i].index, error);
                                 std::fill(out.begin(), out.end(), 0.0f);
                                 labels[i] = kCorruptTarget;
                               }
                             });
  return batch;
}

int64_t ImageDataset::decode(const SampleKey& sample, const ImageSource& source, bool augment,
                             std::span<float> out) const {
  thread_local pictures::Picture picture;  // its memory serves the next sample
  const auto decoder = pictures::open_picture(std::as_bytes(std::span(source.bytes)), source.name);
  base::Dice dice(sample.seed, 0);
  pictures::ResizeOptions resize{.size = {options_.size, options_.size}, .scale = {}, .shift = {}};
  const pictures::PictureBox box = augment ? pictures::random_box(decoder->size(), dice)
                                           : pictures::centre_box(decoder->size(), options_.size);
  resize.flip = augment && dice.coin();
  for (size_t c = 0; c < 3; ++c) {
    resize.scale[c] = 1 / (255 * options_.std[c]);
    resize.shift[c] = -options_.mean[c] / options_.std[c];
  }
  decoder->decode({.box = box, .size = resize.size}, picture);
  pictures::resize_picture(picture, resize, out);
  return source.label;
}

namespace {

class StillPictures : public Dataset {
 public:
  explicit StillPictures(std::shared_ptr<const ImageDataset> data) : data_(std::move(data)) {}

  int64_t size() const override { return data_->size(); }
  Batch batch(std::span<const SampleKey> samples) const override {
    return data_->batch(samples, /*augment=*/false);
  }
  std::vector<std::string> classes() const override { return data_->classes(); }
  int64_t num_corrupt() const override { return data_->num_corrupt(); }

 private:
  std::shared_ptr<const ImageDataset> data_;
};

}  // namespace

std::shared_ptr<const Dataset> without_augmentation(std::shared_ptr<const Dataset> data) {
  if (auto pictures = std::dynamic_pointer_cast<const ImageDataset>(data)) {
    return std::make_shared<StillPictures>(std::move(pictures));
  }
  return data;
}

}  // namespace lockstep::data
