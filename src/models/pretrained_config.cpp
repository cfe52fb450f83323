#include "models/pretrained_config.h"

#include <algorithm>
#include <optional>

#include <fmt/ranges.h>

#include "base/text/text.h"
#include "models/config_fields.h"
#include "models/families.h"
#include "weights/small_file.h"

namespace lockstep::models {
namespace {

constexpr const char* kConfigFile = "config.json";

// Found by its end, since DataParallel puts "module." before every name; null: not there.
const WeightInfo* find_by_end(const Weights& weights, const std::string& name) {
  const auto& tensors = weights.tensors();
  const auto found = std::find_if(tensors.begin(), tensors.end(), [&](const WeightInfo& info) {
    return info.name == name || info.name == "module." + name;
  });
  return found == tensors.end() ? nullptr : &*found;
}

int64_t first_dimension(const WeightInfo& info) {
  return info.shape.empty() ? 0 : info.shape[0];
}

// torchvision's files have no configuration, and their tensors say it all.
std::optional<ModelConfig> resnet_of(const Weights& weights) {
  const WeightInfo* first = find_by_end(weights, "conv1.weight");
  const WeightInfo* last = find_by_end(weights, "fc.weight");
  if (first == nullptr || last == nullptr) {
    return std::nullopt;
  }
  ResNetOptions options;
  options.width = first_dimension(*first);
  options.num_classes = first_dimension(*last);
  options.bottleneck = find_by_end(weights, "layer1.0.conv3.weight") != nullptr;
  for (size_t stage = 0; stage < options.blocks.size(); ++stage) {
    int64_t& blocks = options.blocks[stage] = 0;
    while (find_by_end(weights, fmt::format("layer{}.{}.conv1.weight", stage + 1, blocks))) {
      ++blocks;
    }
    if (blocks == 0) {
      return std::nullopt;
    }
  }
  return ModelConfig{.architecture = "ResNet", .options = options};
}

bool is_builtin(const std::string& name) {
  const std::vector<std::string> names = builtin_config_names();
  return std::find(names.begin(), names.end(), name) != names.end();
}

ModelConfig choose(const Weights& weights, Group& group, const AutoModelOptions& options) {
  if (is_builtin(options.config)) {
    ModelConfig config = builtin_config(options.config);
    if (!options.architecture.empty()) {
      config.architecture =
          known_architecture(options.config, family_of(config), options.architecture);
    }
    return config;
  }
  const std::string folder = options.config.empty() ? weights.location() : options.config;
  if (const auto json = weights::read_small_file(folder, kConfigFile, group)) {
    return parse_config({.json = *json,
                         .name = fmt::format("{}/{}", folder, kConfigFile),
                         .architecture = options.architecture});
  }
  const std::vector<std::string> known = builtin_config_names();
  if (!options.config.empty()) {
    throw UsageError(
        "config \"{}\" is neither a folder with a {} nor a built-in configuration: {}{}",
        options.config, kConfigFile, fmt::join(known, ", "),
        base::did_you_mean(options.config, known));
  }
  if (const auto config = resnet_of(weights)) {
    return *config;
  }
  throw UsageError("{} has no {}, and its tensors are not a ResNet's; name a configuration: {}",
                   weights.location(), kConfigFile, fmt::join(known, ", "));
}

void set_num_labels(ModelConfig& config, int64_t num_labels) {
  if (auto* bert = std::get_if<BertOptions>(&config.options)) {
    bert->num_labels = num_labels;
  } else if (auto* resnet = std::get_if<ResNetOptions>(&config.options)) {
    resnet->num_classes = num_labels;
  } else {
    throw UsageError("num_labels is {}, and a {} classifies nothing", num_labels,
                     config.architecture);
  }
}

}  // namespace

ModelConfig find_config(const Weights& weights, Group& group, const AutoModelOptions& options) {
  ModelConfig config = choose(weights, group, options);
  if (options.num_labels != 0) {
    set_num_labels(config, options.num_labels);
  }
  check_options(config);
  return config;
}

}  // namespace lockstep::models
