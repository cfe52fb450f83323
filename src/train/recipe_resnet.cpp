// The recipe "resnet50": a residual network on a folder of pictures, on tar shards, or on the drawn
// cats.
#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/data/image_data.h>
#include <lockstep/models/auto_model.h>
#include <lockstep/models/resnet.h>

#include "data/cat_pictures.h"
#include "train/classifier_task.h"
#include "train/list_text.h"
#include "train/option_ranges.h"
#include "train/recipe.h"

namespace lockstep {
namespace {

// What we call a ResNet of these blocks; empty if it has no name.
std::string builtin_name(const ResNetOptions& options) {
  for (const std::string& name : builtin_config_names()) {
    const ModelConfig config = builtin_config(name);
    const auto* known = std::get_if<ResNetOptions>(&config.options);
    if (known != nullptr && known->blocks == options.blocks &&
        known->bottleneck == options.bottleneck && known->width == options.width) {
      return name;
    }
  }
  return "";
}

class Resnet50 : public Recipe {
 public:
  explicit Resnet50(Config& config) {
    options_.epochs = 2;
    options_.batch_size = 32;
    options_.optimizer = OptimizerKind::Sgd;
    options_.lr = 0.05;
    options_.weight_decay = 1e-4;
    options_.warmup_steps = 5;
    config.read("model.config", config_);
    config.read("model.pretrained", pretrained_);
    config.read("model.num_classes", num_classes_, {.min = 0, .max = 1e6});
    config.read("model.seed", seed_, {.min = 0});
    config.read("data.folder", folder_);
    config.read("data.shards", shards_);
    config.read("data.held_out_folder", held_out_folder_);
    config.read("data.held_out_share", held_out_share_, {.min = 0, .max = 0.9});
    config.read("data.num_drawn", num_drawn_, {.min = 2, .max = 1e6});
    config.read("data.picture_size", picture_size_, {.min = 8, .max = 4096});
    config.read("data.augment", augment_);
    std::string on_corrupt = "fatal";
    config.read("data.on_corrupt", on_corrupt, {"fatal", "skip"});
    on_corrupt_ = on_corrupt == "skip" ? CorruptSample::Skip : CorruptSample::Fatal;
    config.read("train.label_smoothing", label_smoothing_, ranges::kLabelSmoothing);
    if (!folder_.empty() && !shards_.empty()) {
      throw UsageError("data.folder and data.shards are both set: give one of them");
    }
    if (!std::holds_alternative<ResNetOptions>(builtin_config(config_).options)) {
      throw UsageError(
          "model.config = \"{}\" is no ResNet; known: resnet18, resnet34, resnet50, "
          "resnet101, resnet152",
          config_);
    }
  }

  Ingredients make(Group& group) const override {
    Ingredients made;
    made.samples = "pictures";
    made.data = open();
    int64_t num_classes = num_classes_;
    if (num_classes == 0) {
      const auto classes = static_cast<int64_t>(made.data.train->classes().size());
      num_classes = classes > 0 ? classes : shards_.empty() ? kPictureClasses : 1000;
    }
    const ResNet model = make_model(num_classes, group);
    made.task = std::make_unique<ClassifierTask>(
        model.ptr(), [net = model.ptr()](const at::Tensor& input) { return net->forward(input); },
        label_smoothing_);
    made.exports = model.ptr();
    const auto& options = std::get<ResNetOptions>(model->config().options);
    made.model_settings["num_classes"] = fmt::format("{}", options.num_classes);
    if (const std::string name = builtin_name(options); !name.empty()) {
      made.model_settings["config"] = fmt::format("\"{}\"", name);
    }
    return made;
  }

 private:
  TrainerData open() const {
    const ImageOptions options{
        .size = picture_size_, .augment = augment_, .on_corrupt = on_corrupt_};
    if (folder_.empty() && shards_.empty()) {
      return split_held_out(make_dataset(draw_cat_pictures({.num_pictures = num_drawn_})),
                            held_out_share_);
    }
    auto train = folder_.empty() ? open_image_shards(split_list(shards_), options)
                                 : open_image_folder(folder_, options);
    if (held_out_folder_.empty()) {
      return {std::move(train), nullptr};
    }
    ImageOptions still = options;
    still.augment = false;
    return {std::move(train), open_image_folder(held_out_folder_, still)};
  }

  ResNet make_model(int64_t num_classes, Group& group) const {
    if (!pretrained_.empty()) {
      return AutoModel::from_pretrained(
                 pretrained_, group,
                 {.num_labels = num_classes, .seed = static_cast<uint64_t>(seed_)})
          .as<ResNet>();
    }
    auto options = std::get<ResNetOptions>(builtin_config(config_).options);
    options.num_classes = num_classes;
    options.seed = static_cast<uint64_t>(seed_);
    return ResNet(options);
  }

  std::string config_ = "resnet50";
  std::string pretrained_;
  std::string folder_;
  std::string shards_;
  std::string held_out_folder_;
  double held_out_share_ = 0.2;
  int64_t num_classes_ = 0;
  int64_t seed_ = 42;
  int64_t num_drawn_ = 320;
  int64_t picture_size_ = 224;
  bool augment_ = true;
  CorruptSample on_corrupt_ = CorruptSample::Fatal;
  double label_smoothing_ = 0.1;
};

}  // namespace

std::unique_ptr<Recipe> read_resnet50(Config& config) {
  return std::make_unique<Resnet50>(config);
}

}  // namespace lockstep
