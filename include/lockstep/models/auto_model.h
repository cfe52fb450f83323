#pragma once

// AutoModel: the model that a folder or file of published weights holds, on every rank.
//
//   auto pretrained = lockstep::AutoModel::from_pretrained("bert-base-uncased", group,
//       {.architecture = "BertForSequenceClassification", .num_labels = 3});
//   auto model = pretrained.as<lockstep::BertForSequenceClassification>();
//   ...                                                   // train it
//   lockstep::save_pretrained(*model, "my-classifier");   // transformers loads it
//
// What can be read:
//   a folder of Hugging Face's   config.json and model.safetensors, pytorch_model.bin, or shards of
//                                either with their index
//   a ResNet of torchvision      one file; its sizes follow from its tensors
//   any other single file        with `config`: "bert-base-uncased", "gpt2-large", ...
//
// Names are matched as published files need it: with and without "bert." and "transformer.", old
// names (LayerNorm.gamma), masks and positions that are no weights, either name of tied weights.
// What did not match is listed in report() and, but for what is known to be no weight, in the log:
//   missing    weights of a head (and BERT's pooler): drawn from the seed, as for a new model.
//              Missing weights of the body are an error that lists them.
//   surplus    weights that the model has no place for: the head of another task
// Values are converted to float32.
//
// Collective over `group`: headers are read once, tensors as LoadOptions says (lockstep/weights/
// weights.h), and all ranks hold the same bits. What one rank finds wrong, every rank throws.

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <lockstep/base/error.h>
#include <lockstep/models/configured_module.h>
#include <lockstep/weights/weights.h>

namespace lockstep {

struct AutoModelOptions {
  // A built-in configuration's name, or the folder of another config.json; empty: the location's
  // own.
  std::string config;
  std::string architecture;  // the class; empty: as config.json says
  int64_t num_labels = 0;  // of a head that classifies; 0: as config.json or the file says. A head
                           // in the file that has another number is drawn anew
  uint64_t seed = 42;      // of what the file lacks
  std::optional<double> dropout;  // of every layer that has one; empty: as config.json says
  std::string cache_dir;          // see WeightsOptions
  LoadOptions load;
};

struct PretrainedReport {
  std::vector<std::string> missing;  // names of the model, drawn from the seed
  std::vector<std::string> surplus;  // names of the file, not used
  std::vector<std::string> ignored;  // names of the file that are no weights, or second names
  LoadReport load;
};

class AutoModel {
 public:
  // In eval mode, as transformers does. Throws UsageError for a configuration that lockstep cannot
  // compute or that does not go with the file (naming tensor and shapes), FormatError, IoError.
  static AutoModel from_pretrained(const std::string& location, Group& group,
                                   const AutoModelOptions& options = {});
  // In a group of one.
  static AutoModel from_pretrained(const std::string& location,
                                   const AutoModelOptions& options = {});

  // A new one, with first weights (or none: see the options' `initialise`). In training mode.
  static AutoModel from_config(const ModelConfig& config);

  const std::shared_ptr<ConfiguredModule>& module() const { return module_; }
  const ModelConfig& config() const { return module_->config(); }
  const PretrainedReport& report() const { return report_; }

  // The module as what it is: as<GPT2>(). Throws UsageError if it is something else.
  template <typename Holder>
  Holder as() const;

 private:
  std::shared_ptr<ConfiguredModule> module_;
  PretrainedReport report_;
};

// Writes config.json and model.safetensors into `folder`, which is made if need be; from_pretrained
// and (GPT-2, BERT) transformers load it. Not collective: one rank calls it. Throws IoError.
void save_pretrained(const ConfiguredModule& model, const std::string& folder);

// Parameters and buffers alone, under their names: ".safetensors", or ".pth" for torch.load and
// torchvision.
void save_state(const torch::nn::Module& model, const std::string& path);

template <typename Holder>
Holder AutoModel::as() const {
  if (auto typed = std::dynamic_pointer_cast<typename Holder::ContainedType>(module_)) {
    return Holder(std::move(typed));
  }
  throw UsageError(
      "the model is a {}, not what as<>() asks for; see AutoModelOptions::architecture",
      config().architecture);
}

}  // namespace lockstep
