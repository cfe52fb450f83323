// The recipe "resnet50": a residual network on a folder of pictures, on tar shards, or on the drawn
// cats.
#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/data/image_data.h>
#include <lockstep/models/auto_model.h>
#include <lockstep/models/resnet.h>

#include "base/text/text.h"
#include "data/cat_pictures.h"
#include "data/image_batch.h"
#include "data/image_names.h"
#include "train/option_ranges.h"
#include "train/recipes/classifier_task.h"
#include "train/recipes/recipe.h"

namespace lockstep::train {
namespace {

constexpr const char* kNumberedLabel = "LABEL_";  // transformers' name of a class without one

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
  explicit Resnet50(base::Config& config) {
    options_.epochs = 2;
    options_.batch_size = 32;
    options_.optimizer = OptimizerKind::Sgd;
    options_.lr = 0.05;
    options_.weight_decay = 1e-4;
    options_.warmup_steps = 5;
    config.read("model.config", config_);
    config.read_path("model.pretrained", pretrained_);
    config.read("model.num_classes", num_classes_, {.min = 0, .max = 1e6});
    config.read("model.seed", seed_, {.min = 0});
    config.read_path("data.folder", folder_);
    config.read_path("data.shards", shards_, {.is_list = true});
    config.read_path("data.held_out_folder", held_out_folder_);
    config.read_path("data.held_out_shards", held_out_shards_, {.is_list = true});
    held_out_.read(config);
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
    check_held_out();
    if (!std::holds_alternative<ResNetOptions>(builtin_config(config_).options)) {
      throw UsageError(
          "model.config = \"{}\" is not a ResNet; known: resnet18, resnet34, resnet50, "
          "resnet101, resnet152",
          config_);
    }
    sources_ = {
        {.key = "data.folder", .locations = if_given(folder_), .counts = data::is_picture_name},
        {.key = "data.shards", .locations = base::split_setting(shards_)},
        {.key = "data.held_out_folder",
         .locations = if_given(held_out_folder_),
         .counts = data::is_picture_name},
        {.key = "data.held_out_shards", .locations = base::split_setting(held_out_shards_)},
        {.key = "model.pretrained", .locations = if_given(pretrained_), .counts = is_model_file}};
  }

  Ingredients make(Group& group, const MakeOptions& options) const override {
    const auto kept = kept_model(options);
    Ingredients made;
    made.samples = "pictures";
    // Only the data say how many classes there are, where neither recipe nor checkpoint do.
    if (options.with_data || (!kept && num_classes_ == 0)) {
      open(made, options);
    }
    const int64_t classes = num_classes(made.data);
    const ResNet model = kept ? kept->as<ResNet>() : make_model(classes, group);
    made.files[kModelConfigFile] =
        kept ? options.kept->at(kModelConfigFile)
             : model_config_text(model->config(), {.original = original_config(pretrained_, group),
                                                   .labels = labels(made.data),
                                                   .specials = {}});
    made.task = std::make_unique<ClassifierTask>(
        model.ptr(), [net = model.ptr()](const Batch& batch) { return net->forward(batch.input); },
        label_smoothing_);
    made.exports = model.ptr();
    const auto& shape = std::get<ResNetOptions>(model->config().options);
    made.model_settings["num_classes"] = fmt::format("{}", shape.num_classes);
    if (const std::string name = builtin_name(shape); !name.empty()) {
      made.model_settings["config"] = fmt::format("\"{}\"", name);
    }
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

  // This is for data that do not name their classes.
  int64_t num_labels() const {
    return num_classes_ > 0 ? num_classes_ : shards_.empty() ? data::kPictureClasses : 1000;
  }

  static std::vector<std::string> class_names(const TrainerData& data) {
    return data.train ? data.train->classes() : std::vector<std::string>{};
  }

  // Returns one for each output, even if model.num_classes leaves room for classes to come.
  std::vector<std::string> labels(const TrainerData& data) const {
    std::vector<std::string> names = class_names(data);
    while (!names.empty() && std::ssize(names) < num_classes_) {
      names.push_back(fmt::format("{}{}", kNumberedLabel, names.size()));
    }
    return names;
  }

  // The names of the classes that a checkpoint's model tells apart, in the order of its outputs;
  // none where they only have numbers.
  static std::vector<std::string> kept_classes(const MakeOptions& options) {
    if (options.kept == nullptr || !options.kept->contains(kModelConfigFile)) {
      return {};
    }
    std::vector<std::string> names = labels_of(options.kept->at(kModelConfigFile));
    const bool has_names = !names.empty() && !names.front().starts_with(kNumberedLabel);
    return has_names ? names : std::vector<std::string>{};
  }

  int64_t num_classes(const TrainerData& data) const {
    const auto classes = std::ssize(class_names(data));
    if (classes == 1 && num_classes_ == 0) {
      throw UsageError(
          "data.folder = \"{}\" has one class only (\"{}\"), so that there is nothing to tell "
          "apart; give a folder that holds a folder for each class, or set model.num_classes",
          folder_, class_names(data).front());
    }
    if (num_classes_ > 0 && classes > num_classes_) {
      throw UsageError(
          "data.folder = \"{}\" has {} classes, which is more than model.num_classes = {}; raise "
          "it, or set it to 0: as the data say",
          folder_, classes, num_classes_);
    }
    return classes > 0 && num_classes_ == 0 ? classes : num_labels();
  }

  void open(Ingredients& made, const MakeOptions& how) const {
    ImageOptions options{.size = picture_size_,
                         .augment = augment_,
                         .on_corrupt = on_corrupt_,
                         .classes = kept_classes(how),
                         .num_classes = num_labels()};
    if (folder_.empty() && shards_.empty()) {
      hold_out(made, make_dataset(data::draw_cat_pictures({.num_pictures = num_drawn_})),
               held_out_);
      return;
    }
    const bool has_own = !held_out_folder_.empty() || !held_out_shards_.empty();
    const bool knows_classes = folder_.empty() || !options.classes.empty();
    std::shared_ptr<const Dataset> train;
    if (!how.judges_only || !has_own || !knows_classes) {
      train = folder_.empty() ? open_image_shards(base::split_setting(shards_), options)
                              : open_image_folder(folder_, options);
      options.classes = train->classes();
    }
    options.augment = false;
    if (!held_out_folder_.empty()) {
      hold_out(made, train, open_image_folder(held_out_folder_, options), held_out_folder_);
    } else if (!held_out_shards_.empty()) {
      hold_out(made, train, open_image_shards(base::split_setting(held_out_shards_), options),
               held_out_shards_);
    } else {
      hold_out(made, train, held_out_, data::without_augmentation(train));
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

std::unique_ptr<Recipe> read_resnet50(base::Config& config) {
  return std::make_unique<Resnet50>(config);
}

}  // namespace lockstep::train
