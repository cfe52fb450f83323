// The recipe "cats": a small network learns to tell drawn cats from not-cats. No file is needed.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randperm.h>

#include <lockstep/base/error.h>

#include "data/cat_pictures.h"
#include "data/picture_jitter.h"
#include "models/small_convnet.h"
#include "train/option_ranges.h"
#include "train/recipes/classifier_task.h"
#include "train/recipes/recipe.h"

namespace lockstep::train {
namespace {

// Each picture a little changed, anew in every epoch.
class JitteredPictures : public Dataset {
 public:
  explicit JitteredPictures(TensorDataset pictures) : pictures_(std::move(pictures)) {}

  int64_t size() const override { return pictures_.size(); }

  Batch batch(std::span<const SampleKey> samples) const override {
    const auto count = static_cast<int64_t>(samples.size());
    const at::Tensor rows = at::empty({count}, at::kLong);
    std::vector<uint64_t> seeds;
    for (int64_t i = 0; i < count; ++i) {
      rows.mutable_data_ptr<int64_t>()[i] = samples[static_cast<size_t>(i)].index;
      seeds.push_back(samples[static_cast<size_t>(i)].seed);
    }
    return {data::jitter_pictures(pictures_.input.index_select(0, rows), seeds),
            pictures_.target.index_select(0, rows)};
  }

 private:
  TensorDataset pictures_;
};

struct CatsSettings {
  int64_t channels = 16;
  int64_t model_seed = 1;
  int64_t num_pictures = 400;
  int64_t seed = 1;
  int64_t held_out_pictures = 400;
  int64_t held_out_seed = 2;
  bool shuffle_labels = false;
  double label_smoothing = 0;
};

class Cats : public Recipe {
 public:
  explicit Cats(base::Config& config) {
    options_.epochs = 32;
    options_.batch_size = 40;
    options_.lr = 0.003;
    options_.min_lr_share = 0.05;
    options_.clip_norm = 0;
    config.read("model.channels", settings_.channels, {.min = 1, .max = 1024});
    config.read("model.seed", settings_.model_seed, {.min = 0});
    config.read("data.num_pictures", settings_.num_pictures, {.min = 2, .max = 1e6});
    config.read("data.seed", settings_.seed, {.min = 0});
    config.read("data.held_out_pictures", settings_.held_out_pictures, {.min = 1, .max = 1e6});
    config.read("data.held_out_seed", settings_.held_out_seed, {.min = 0});
    config.read("data.shuffle_labels", settings_.shuffle_labels);
    config.read("train.label_smoothing", settings_.label_smoothing, ranges::kLabelSmoothing);
    if (settings_.held_out_seed == settings_.seed) {
      throw UsageError(
          "data.held_out_seed and data.seed are both {}: the model would be judged by the pictures "
          "it was trained on; give one of them another value",
          settings_.seed);
    }
  }

  Ingredients make(Group& /*group*/, const MakeOptions& /*options*/) const override {
    TensorDataset pictures = data::draw_cat_pictures(
        {.num_pictures = settings_.num_pictures, .seed = static_cast<uint64_t>(settings_.seed)});
    if (settings_.shuffle_labels) {
      const auto generator = at::make_generator<at::CPUGeneratorImpl>(options_.seed);
      const auto order =
          at::randperm(pictures.size(), generator, at::TensorOptions().dtype(at::kLong));
      pictures.target = pictures.target.index_select(0, order);
    }
    Ingredients made;
    models::SmallConvnet model(
        models::SmallConvnetOptions{.picture_size = data::kPictureSize,
                                    .in_channels = data::kPictureChannels,
                                    .channels = settings_.channels,
                                    .num_classes = data::kPictureClasses,
                                    .seed = static_cast<uint64_t>(settings_.model_seed)});
    made.task = std::make_unique<ClassifierTask>(
        model.ptr(), [net = model.ptr()](const Batch& batch) { return net->forward(batch.input); },
        settings_.label_smoothing);
    made.data.train = std::make_shared<JitteredPictures>(std::move(pictures));
    made.data.held_out = make_dataset(
        data::draw_cat_pictures({.num_pictures = settings_.held_out_pictures,
                                 .seed = static_cast<uint64_t>(settings_.held_out_seed)}));
    made.samples = "pictures";
    return made;
  }

 private:
  CatsSettings settings_;
};

}  // namespace

std::unique_ptr<Recipe> read_cats(base::Config& config) {
  return std::make_unique<Cats>(config);
}

}  // namespace lockstep::train
