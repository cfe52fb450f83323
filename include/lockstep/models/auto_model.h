#pragma once

// AutoModel: the model that a folder or a file of published weights holds, on every rank.
//
// Example:
//   auto pretrained = lockstep::AutoModel::from_pretrained(
//       "bert-base-uncased", group,
//       {.architecture = "BertForSequenceClassification", .num_labels = 3});
//   auto model = pretrained.as<lockstep::BertForSequenceClassification>();
//   train_all();
//   lockstep::save_pretrained(*model, "my-classifier");  // transformers can load it
//
// What can be read:
//
//   a folder of Hugging Face's  config.json with model.safetensors, pytorch_model.bin, or shards of
//                               either with their index
//   a ResNet of torchvision     one file; its sizes follow from its tensors
//   any other single file       with `config`: "bert-base-uncased", "gpt2-large", ...
//
// Names are matched as published files require: with and without "bert." and "transformer.", old
// names (LayerNorm.gamma), masks and positions that are not weights, and either name of tied
// weights. report() lists what did not match, and the log shows it too, except for what is known
// not to be a weight:
//
//   missing  the weights of a head, and of BERT's pooler: they are drawn from the seed as for a new
//            model. Missing weights of the body are an error that lists them.
//   surplus  weights for which the model has no place, such as the head of another task
//
// Values are converted to float32.
//
// Loading is collective over `group`: headers are read once, tensors as LoadOptions says
// (lockstep/weights/weights.h), and all ranks hold the same bits. What one rank finds wrong, every
// rank throws, and the group stays usable.

#include <cstdint>
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
  // The name of a built-in configuration, or the folder of another config.json. Empty means the
  // location's own.
  std::string config;
  std::string architecture;  // the class; empty means the one that config.json names
  // The number of classes of a head that classifies; 0 means the one in config.json or the file. A
  // head in the file that has another number is drawn anew.
  int64_t num_labels = 0;
  uint64_t seed = 42;             // for the weights that the file lacks
  std::optional<double> dropout;  // for every layer that has one; empty means as in config.json
  std::string cache_dir;          // see WeightsOptions
  at::Device device = at::kCPU;   // where the model is loaded to, such as local_device()
  LoadOptions load;
};

struct PretrainedReport {
  std::vector<std::string> missing;  // names in the model that were drawn from the seed
  std::vector<std::string> surplus;  // names in the file that were not used
  std::vector<std::string> ignored;  // names in the file that are not weights, or are second names
  LoadReport load;
};

// A model of some class, with the report of how it was loaded. It is a handle: copies share the
// module.
// Threads: one thread at a time, as for torch::nn::Module.
class AutoModel {
 public:
  // Collective. Loads a model, in eval mode as transformers does. Throws UsageError for a
  // configuration that lockstep cannot compute or that does not match the file (with the tensor and
  // the shapes), FormatError for a damaged file and IoError for one that cannot be read.
  static AutoModel from_pretrained(const std::string& location, Group& group,
                                   const AutoModelOptions& options = {});
  // Does the same in a group of one.
  static AutoModel from_pretrained(const std::string& location,
                                   const AutoModelOptions& options = {});

  // Makes a new model, in training mode, with initial weights unless the options' `initialise` is
  // false. Throws UsageError if an option is out of range.
  static AutoModel from_config(const ModelConfig& config);

  const std::shared_ptr<ConfiguredModule>& module() const { return module_; }
  const ModelConfig& config() const { return module_->config(); }
  const PretrainedReport& report() const { return report_; }

  // Returns the module as the class that it is, such as as<GPT2>(). Throws UsageError if it is of
  // another class.
  template <typename Holder>
  Holder as() const;

 private:
  std::shared_ptr<ConfiguredModule> module_;
  PretrainedReport report_;
};

// Writes config.json and model.safetensors into `folder`, which is made if it does not exist.
// from_pretrained() loads the folder, and for GPT-2 and BERT transformers does too. It is not
// collective: one rank calls it. Each file appears whole or not at all. Throws IoError.
void save_pretrained(const ConfiguredModule& model, const std::string& folder);

// Writes parameters and buffers alone, under their names. The path ends in ".safetensors", or in
// ".pth" for torch.load and torchvision. It is not collective. Throws what save_weights() throws.
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
