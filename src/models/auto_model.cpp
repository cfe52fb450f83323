#include <algorithm>
#include <unordered_set>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <fmt/ranges.h>

#include <lockstep/base/log.h>
#include <lockstep/device/device.h>
#include <lockstep/models/auto_model.h>
#include <lockstep/models/bert.h>
#include <lockstep/models/gpt2.h>
#include <lockstep/models/my_transformer.h>
#include <lockstep/models/resnet.h>

#include "device/memory.h"
#include "models/families.h"
#include "models/init.h"
#include "models/pretrained_config.h"
#include "weights/together.h"

namespace lockstep {
namespace {

constexpr size_t kMaxNamesShown = 6;

std::string shown(const std::vector<std::string>& names) {
  const auto end = names.begin() + static_cast<int64_t>(std::min(names.size(), kMaxNamesShown));
  const size_t num_more = names.size() - static_cast<size_t>(end - names.begin());
  return fmt::format("{}{}", fmt::join(names.begin(), end, ", "),
                     num_more > 0 ? fmt::format(" and {} more", num_more) : "");
}

std::shared_ptr<ConfiguredModule> make(const ModelConfig& config) {
  if (const auto* options = std::get_if<MyTransformerOptions>(&config.options)) {
    return std::make_shared<MyTransformerImpl>(*options);
  }
  if (const auto* options = std::get_if<GPT2Options>(&config.options)) {
    return std::make_shared<GPT2Impl>(*options);
  }
  if (const auto* options = std::get_if<ResNetOptions>(&config.options)) {
    return std::make_shared<ResNetImpl>(*options);
  }
  const auto& options = std::get<BertOptions>(config.options);
  if (config.architecture == "BertForMaskedLM") {
    return std::make_shared<BertForMaskedLMImpl>(options);
  }
  if (config.architecture == "BertForSequenceClassification") {
    return std::make_shared<BertForSequenceClassificationImpl>(options);
  }
  return std::make_shared<BertImpl>(options);
}

std::vector<WeightTarget> state_of(const torch::nn::Module& module) {
  std::vector<WeightTarget> state;
  for (const auto& items : {module.named_parameters(), module.named_buffers()}) {
    for (const auto& item : items) {
      state.push_back({item.key(), item.value().detach()});
    }
  }
  return state;
}

std::vector<std::string> names_of(const std::vector<WeightTarget>& state) {
  std::vector<std::string> names;
  for (const WeightTarget& target : state) {
    names.push_back(target.name);
  }
  return names;
}

std::vector<std::string> names_of(const Weights& weights) {
  std::vector<std::string> names;
  for (const WeightInfo& info : weights.tensors()) {
    names.push_back(info.name);
  }
  return names;
}

// Moves the model. What will be loaded is not copied: it has no values yet.
void move_to(torch::nn::Module& module, at::Device device, const weights::NameMap& map) {
  if (device.is_cpu()) {
    return;
  }
  if (const std::string problem = cuda_problem(); !problem.empty()) {
    throw UsageError("from_pretrained: a model cannot be loaded to {}: {}", device.str(), problem);
  }
  const at::NoGradGuard no_grad;
  std::unordered_set<std::string_view> loaded;
  for (const weights::NameMap::Pair& pair : map.pairs) {
    loaded.insert(pair.model_name);
  }
  for (const auto& items : {module.named_parameters(), module.named_buffers()}) {
    for (const auto& item : items) {
      at::Tensor tensor = item.value();
      tensor.set_data(device::with_memory(
          {.user = "from_pretrained: " + item.key(), .device = device, .bytes = tensor.nbytes()},
          [&] {
            return loaded.contains(item.key())
                       ? at::empty(tensor.sizes(), tensor.options().device(device))
                       : tensor.to(device);
          }));
    }
  }
}

// Takes the heads whose number of labels is not the wanted one out of `map`.
void drop_other_heads(const Weights& weights, const models::ModelFamily& family,
                      const std::vector<WeightTarget>& state, weights::NameMap& map) {
  const auto is_other = [&](const weights::NameMap::Pair& pair) {
    const auto target = std::find_if(state.begin(), state.end(), [&](const WeightTarget& one) {
      return one.name == pair.model_name;
    });
    return models::belongs_to_head(family, pair.model_name) &&
           target->tensor.sizes() != at::IntArrayRef(weights.find(pair.file_name)->shape);
  };
  for (const weights::NameMap::Pair& pair : map.pairs) {
    if (is_other(pair)) {
      map.missing.push_back(pair.model_name);
      map.surplus.push_back(pair.file_name);
    }
  }
  std::erase_if(map.pairs, is_other);
}

// A missing head may be drawn from the seed, but a missing body may not.
void check_missing(const Weights& weights, const ModelConfig& config, const weights::NameMap& map) {
  std::vector<std::string> body;
  for (const std::string& name : map.missing) {
    if (!models::belongs_to_head(models::family_of(config), name) &&
        !name.ends_with("num_batches_tracked")) {
      body.push_back(name);
    }
  }
  if (!body.empty()) {
    throw FormatError(
        "{} lacks {} of the weights of a {}: {}; not used: {}; is it the right configuration?",
        weights.location(), body.size(), config.architecture, shown(body),
        map.surplus.empty() ? "nothing" : shown(map.surplus));
  }
}

std::vector<WeightTarget> targets_of(const std::vector<WeightTarget>& state,
                                     const weights::NameMap& map) {
  std::vector<WeightTarget> targets;
  auto item = state.begin();
  for (const weights::NameMap::Pair& pair : map.pairs) {  // in the model's order
    item = std::find_if(item, state.end(),
                        [&](const WeightTarget& one) { return one.name == pair.model_name; });
    targets.push_back({pair.file_name, item->tensor});
  }
  return targets;
}

void log_report(const Weights& weights, const ModelConfig& config, const PretrainedReport& report) {
  log::info("models", "{} from {}", config.architecture, weights.location());
  if (!report.missing.empty()) {
    log::warn("models", "not in {}, drawn from the seed: {}; train before use", weights.location(),
              shown(report.missing));
  }
  if (!report.surplus.empty()) {
    log::warn("models", "not used of {}: {}", weights.location(), shown(report.surplus));
  }
}

void set_dropout(GPT2Options& options, double dropout) {
  options.embedding_dropout = options.attention_dropout = options.residual_dropout = dropout;
}

void set_dropout(BertOptions& options, double dropout) {
  options.hidden_dropout = options.attention_dropout = dropout;
  options.classifier_dropout = -1;  // follows the hidden one
}

void set_dropout(MyTransformerOptions& options, double dropout) {
  options.dropout = dropout;
}

void set_dropout(ResNetOptions& /*options*/, double /*dropout*/) {}  // has none

}  // namespace

AutoModel AutoModel::from_config(const ModelConfig& config) {
  AutoModel model;
  model.module_ = make(config);
  return model;
}

AutoModel AutoModel::from_pretrained(const std::string& location, Group& group,
                                     const AutoModelOptions& options) {
  Weights weights = Weights::open(location, group, {.cache_dir = options.cache_dir});
  ModelConfig config = models::find_config(weights, group, options);
  std::visit([](auto& of_model) { of_model.initialise = false; }, config.options);
  if (options.dropout) {
    std::visit([&](auto& of_model) { set_dropout(of_model, *options.dropout); }, config.options);
  }
  AutoModel model = from_config(config);

  const models::ModelFamily& family = models::family_of(config);
  const std::vector<WeightTarget> state = state_of(*model.module_);
  weights::NameMap map = weights::map_names(names_of(state), names_of(weights), family.names);
  if (options.num_labels > 0) {
    drop_other_heads(weights, family, state, map);
  }
  check_missing(weights, config, map);
  models::initialise(*model.module_, options.seed, map.missing);
  weights::run_together(group, [&] { move_to(*model.module_, options.device, map); });
  PretrainedReport& report = model.report_;
  report.load =
      load_weights(weights, targets_of(state_of(*model.module_), map), group, options.load);

  std::erase_if(map.missing,
                [](const std::string& name) { return name.ends_with("num_batches_tracked"); });
  report.missing = std::move(map.missing);
  report.surplus = std::move(map.surplus);
  report.ignored = std::move(map.ignored);
  report.ignored.insert(report.ignored.end(), map.tied.begin(), map.tied.end());
  if (group.rank() == 0) {
    log_report(weights, config, report);
  }
  model.module_->eval();
  return model;
}

AutoModel AutoModel::from_pretrained(const std::string& location, const AutoModelOptions& options) {
  Group group = make_single_group();
  return from_pretrained(location, group, options);
}

}  // namespace lockstep
