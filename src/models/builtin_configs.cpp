#include <map>

#include <fmt/ranges.h>

#include <lockstep/base/error.h>
#include <lockstep/models/model_config.h>

#include "base/text/text.h"
#include "models/config_fields.h"

namespace lockstep {
namespace {

ModelConfig bert(int64_t hidden_size, int64_t num_layers, int64_t num_heads) {
  BertOptions options;
  options.hidden_size = hidden_size;
  options.num_layers = num_layers;
  options.num_heads = num_heads;
  options.ffn_size = 4 * hidden_size;
  return {.architecture = "BertForMaskedLM", .options = options};
}

ModelConfig sentence_bert(int64_t hidden_size, int64_t num_layers, int64_t num_heads) {
  ModelConfig config = bert(hidden_size, num_layers, num_heads);
  config.architecture = "BertModel";
  return config;
}

ModelConfig gpt2(int64_t hidden_size, int64_t num_layers, int64_t num_heads) {
  GPT2Options options;
  options.hidden_size = hidden_size;
  options.num_layers = num_layers;
  options.num_heads = num_heads;
  options.ffn_size = 4 * hidden_size;
  return {.architecture = "GPT2LMHeadModel", .options = options};
}

ModelConfig resnet(std::vector<int64_t> blocks, bool bottleneck) {
  ResNetOptions options;
  options.blocks = std::move(blocks);
  options.bottleneck = bottleneck;
  return {.architecture = "ResNet", .options = options};
}

const std::map<std::string, ModelConfig>& builtins() {
  static const std::map<std::string, ModelConfig> all = {
      {"all-MiniLM-L6-v2", sentence_bert(384, 6, 12)},
      {"bert-base-uncased", bert(768, 12, 12)},
      {"bert-large-uncased", bert(1024, 24, 16)},
      {"gpt2", gpt2(768, 12, 12)},
      {"gpt2-medium", gpt2(1024, 24, 16)},
      {"gpt2-large", gpt2(1280, 36, 20)},
      {"gpt2-xl", gpt2(1600, 48, 25)},
      {"mytransformer", {.architecture = "MyTransformer", .options = MyTransformerOptions{}}},
      {"resnet18", resnet({2, 2, 2, 2}, false)},
      {"resnet34", resnet({3, 4, 6, 3}, false)},
      {"resnet50", resnet({3, 4, 6, 3}, true)},
      {"resnet101", resnet({3, 4, 23, 3}, true)},
      {"resnet152", resnet({3, 8, 36, 3}, true)},
  };
  return all;
}

}  // namespace

std::vector<std::string> builtin_config_names() {
  std::vector<std::string> names;
  for (const auto& [name, config] : builtins()) {
    names.push_back(name);
  }
  return names;
}

ModelConfig builtin_config(const std::string& name) {
  const auto found = builtins().find(name);
  if (found == builtins().end()) {
    const std::vector<std::string> known = builtin_config_names();
    throw UsageError("there is no built-in configuration \"{}\"; there are {}{}", name,
                     fmt::join(known, ", "), base::did_you_mean(name, known));
  }
  return found->second;
}

}  // namespace lockstep
