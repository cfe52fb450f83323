// The recipe "resnet50": a residual network on a folder of pictures, on tar shards, or on the drawn
// cats.
#include <lockstep/base/error.h>
#include <lockstep/data/image_data.h>
#include <lockstep/models/auto_model.h>
#include <lockstep/models/resnet.h>

#include "data/cat_pictures.h"
#include "data/image_batch.h"
#include "train/classifier_task.h"
#include "train/list_text.h"
#include "train/recipe.h"

namespace lockstep {
namespace {

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
    config.read("data.held_out_shards", held_out_shards_);
    held_out_.read(config);
    config.read("data.num_drawn", num_drawn_, {.min = 2, .max = 1e6});
    config.read("data.picture_size", picture_size_, {.min = 8, .max = 4096});
    config.read("data.augment", augment_);
    std::string on_corrupt = "fatal";
    config.read("data.on_corrupt", on_corrupt, {"fatal", "skip"});
    on_corrupt_ = on_corrupt == "skip" ? CorruptSample::Skip : CorruptSample::Fatal;
    config.read("train.label_smoothing", label_smoothing_, {.min = 0, .max = 1});
    if (!folder_.empty() && !shards_.empty()) {
      throw UsageError("data.folder and data.shards are both set: give one of them");
    }
    check_held_out();
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
    open(made);
    const auto classes = static_cast<int64_t>(made.data.train->classes().size());
    if (num_classes_ > 0 && classes > num_classes_) {
      throw UsageError(
          "data.folder = \"{}\" has {} classes, which is more than model.num_classes = {}; raise "
          "it, or set it to 0: as the data say",
          folder_, classes, num_classes_);
    }
    const int64_t num_classes = classes > 0 && num_classes_ == 0 ? classes : num_labels();
    const ResNet model = make_model(num_classes, group);
    made.task = std::make_unique<ClassifierTask>(
        model.ptr(), [net = model.ptr()](const at::Tensor& input) { return net->forward(input); },
        label_smoothing_);
    made.exports = model.ptr();
    return made;
  }

 private:
  // A folder's classes have names and a shard's have numbers: neither tells which is which of the
  // other.
  void check_held_out() const {
    if (!held_out_folder_.empty() && folder_.empty()) {
      throw UsageError(
          "data.held_out_folder = \"{}\" needs data.folder: its classes are matched by their "
          "names, "
          "and {} name none; {}",
          held_out_folder_, shards_.empty() ? "the drawn cats" : "shards",
          shards_.empty() ? "set data.held_out_share" : "set data.held_out_shards");
    }
    if (!held_out_shards_.empty() && shards_.empty()) {
      throw UsageError(
          "data.held_out_shards = \"{}\" needs data.shards: their classes are numbers, those of {} "
          "are not; set {}",
          held_out_shards_, folder_.empty() ? "the drawn cats" : "data.folder",
          folder_.empty() ? "data.held_out_share" : "data.held_out_folder");
    }
  }

  // Of data that do not name their classes.
  int64_t num_labels() const {
    return num_classes_ > 0 ? num_classes_ : shards_.empty() ? kPictureClasses : 1000;
  }

  void open(Ingredients& made) const {
    ImageOptions options{.size = picture_size_,
                         .augment = augment_,
                         .on_corrupt = on_corrupt_,
                         .num_classes = num_labels()};
    if (folder_.empty() && shards_.empty()) {
      hold_out(made, make_dataset(draw_cat_pictures({.num_pictures = num_drawn_})), held_out_);
      return;
    }
    const auto train = folder_.empty() ? open_image_shards(split_list(shards_), options)
                                       : open_image_folder(folder_, options);
    options.augment = false;
    options.classes = train->classes();
    if (!held_out_folder_.empty()) {
      hold_out(made, train, open_image_folder(held_out_folder_, options), held_out_folder_);
    } else if (!held_out_shards_.empty()) {
      hold_out(made, train, open_image_shards(split_list(held_out_shards_), options),
               held_out_shards_);
    } else {
      hold_out(made, train, held_out_, without_augmentation(train));
    }
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
  std::string held_out_shards_;
  HeldOutShare held_out_{.share = 0.2};
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
