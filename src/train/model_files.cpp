#include "train/model_files.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <lockstep/base/error.h>
#include <lockstep/models/auto_model.h>

#include "base/unique_fd.h"
#include "tokenizers/byte_level.h"

namespace lockstep::train {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr size_t kMaxFileBytes = 256u << 20;

constexpr const char* kTokenizerJson = "tokenizer.json";
constexpr const char* kTokenizerConfig = "tokenizer_config.json";
constexpr const char* kVocabTxt = "vocab.txt";
constexpr const char* kVocabJson = "vocab.json";
constexpr const char* kMerges = "merges.txt";
constexpr const char* kTokenizerNames[] = {
    kTokenizerJson, kVocabTxt, kVocabJson, kMerges, kTokenizerConfig, "special_tokens_map.json"};

// These fields describe the files that training began with, and not ours.
constexpr const char* kForeignFields[] = {
    "_name_or_path",        "architectures",       "auto_map",  "dtype", "torch_dtype",
    "transformers_version", "quantization_config", "num_labels"};

Json object_of(const std::string& text) {
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  return json.is_object() ? json : Json::object();
}

void set_labels(Json& json, const std::vector<std::string>& labels) {
  json["id2label"] = Json::object();
  json["label2id"] = Json::object();
  for (size_t i = 0; i < labels.size(); ++i) {
    json["id2label"][std::to_string(i)] = labels[i];
    json["label2id"][labels[i]] = i;
  }
}

// Returns 0 for a model that does not classify.
int64_t num_labels_of(const ModelConfig& config) {
  if (const auto* resnet = std::get_if<ResNetOptions>(&config.options)) {
    return resnet->num_classes;
  }
  const auto* bert = std::get_if<BertOptions>(&config.options);
  return bert != nullptr && config.architecture == "BertForSequenceClassification"
             ? bert->num_labels
             : 0;
}

void set_end_ids(Json& json, const Json& original, const ModelNotes& notes) {
  const auto set = [&](const char* field, std::optional<int32_t> SpecialIds::*id) {
    if (notes.specials && (*notes.specials).*id) {
      json[field] = *((*notes.specials).*id);
    } else if (original.contains(field)) {
      json[field] = original[field];
    }
  };
  set("bos_token_id", &SpecialIds::begin);
  set("eos_token_id", &SpecialIds::end);
}

void add_file(ModelFiles& files, const fs::path& path, const std::string& name) {
  std::error_code ignored;
  if (fs::is_regular_file(path, ignored)) {
    files[name] = base::read_file(path.string(), kMaxFileBytes);
  }
}

// transformers asks tokenizer_config.json which class to make.
void complete_tokenizer_config(ModelFiles& files) {
  const TokenizerFolder folder(files);
  if (folder.path().empty()) {
    return;
  }
  Json json = object_of(files[kTokenizerConfig]);
  if (!json.contains("tokenizer_class")) {
    json["tokenizer_class"] = files.contains(kTokenizerJson) ? "PreTrainedTokenizerFast"
                              : files.contains(kVocabTxt)    ? "BertTokenizer"
                                                             : "GPT2Tokenizer";
  }
  const Tokenizer tokenizer = load_tokenizer(folder.path());
  const SpecialIds& ids = tokenizer.special_ids();
  const std::pair<const char*, std::optional<int32_t>> names[] = {
      {"unk_token", ids.unknown},   {"pad_token", ids.padding}, {"cls_token", ids.classifier},
      {"sep_token", ids.separator}, {"mask_token", ids.mask},   {"bos_token", ids.begin},
      {"eos_token", ids.end}};
  for (const auto& [name, id] : names) {
    if (id && !json.contains(name)) {
      json[name] = tokenizer.token_of(*id);
    }
  }
  files[kTokenizerConfig] = json.dump(2) + "\n";
}

}  // namespace

std::string model_config_text(const ModelConfig& config, const ModelNotes& notes) {
  const Json original = object_of(notes.original);
  Json json = original;
  for (const char* field : kForeignFields) {
    json.erase(field);
  }
  const Json own = Json::parse(config_json(config));
  json.update(own);
  if (std::holds_alternative<GPT2Options>(config.options)) {
    set_end_ids(json, original, notes);
  }
  const auto num_labels = static_cast<size_t>(num_labels_of(config));
  const std::vector<std::string> labels =
      notes.labels.size() == num_labels ? notes.labels : labels_of(notes.original);
  if (num_labels > 0 && labels.size() == num_labels) {
    set_labels(json, labels);
  }
  if (config.architecture == "BertForSequenceClassification") {
    json["problem_type"] = "single_label_classification";
  }
  return json.dump(2) + "\n";
}

std::vector<std::string> labels_of(const std::string& config_text) {
  const Json json = object_of(config_text);
  if (!json.contains("id2label") || !json["id2label"].is_object()) {
    return {};
  }
  std::vector<std::string> labels;
  for (size_t i = 0; i < json["id2label"].size(); ++i) {
    const auto label = json["id2label"].find(std::to_string(i));
    if (label == json["id2label"].end() || !label->is_string()) {
      return {};
    }
    labels.push_back(label->get<std::string>());
  }
  return labels;
}

ModelFiles tokenizer_files(const std::string& location) {
  const fs::path path = location;
  ModelFiles files;
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) {
    for (const char* name : kTokenizerNames) {
      add_file(files, path / name, name);
    }
    return files;
  }
  const fs::path folder = path.parent_path();
  if (path.extension() == ".txt") {
    add_file(files, path, kVocabTxt);
  } else if (object_of(base::read_file(location, kMaxFileBytes)).contains("model")) {
    add_file(files, path, kTokenizerJson);
  } else {
    add_file(files, path, kVocabJson);
    add_file(files, folder / kMerges, kMerges);
  }
  for (const char* name : {kTokenizerConfig, "special_tokens_map.json"}) {
    add_file(files, folder / name, name);
  }
  return files;
}

ModelFiles byte_tokenizer_files() {
  Json vocabulary = Json::object();
  for (size_t byte = 0; byte < tokenizers::byte_letters().size(); ++byte) {
    vocabulary[tokenizers::byte_letters()[byte]] = byte;
  }
  const Json bytes{{"type", "ByteLevel"},
                   {"add_prefix_space", false},
                   {"trim_offsets", true},
                   {"use_regex", true}};
  const Json json{{"version", "1.0"},
                  {"truncation", nullptr},
                  {"padding", nullptr},
                  {"added_tokens", Json::array()},
                  {"normalizer", nullptr},
                  {"pre_tokenizer", bytes},
                  {"post_processor", nullptr},
                  {"decoder", bytes},
                  {"model",
                   {{"type", "BPE"},
                    {"dropout", nullptr},
                    {"unk_token", nullptr},
                    {"continuing_subword_prefix", nullptr},
                    {"end_of_word_suffix", nullptr},
                    {"fuse_unk", false},
                    {"byte_fallback", false},
                    {"vocab", vocabulary},
                    {"merges", Json::array()}}}};
  return {{kTokenizerJson, json.dump(2) + "\n"},
          {kTokenizerConfig, Json{{"tokenizer_class", "PreTrainedTokenizerFast"},
                                  {"clean_up_tokenization_spaces", false}}
                                     .dump(2) +
                                 "\n"}};
}

bool is_tokenizer_file(const std::string& name) {
  return std::find(std::begin(kTokenizerNames), std::end(kTokenizerNames), name) !=
         std::end(kTokenizerNames);
}

TokenizerFolder::TokenizerFolder(const ModelFiles& files) {
  if (!files.contains(kTokenizerJson) && !files.contains(kVocabTxt) &&
      !files.contains(kVocabJson)) {
    return;
  }
  path_ = (fs::temp_directory_path() / "lockstep-tokenizer-XXXXXX").string();
  if (::mkdtemp(path_.data()) == nullptr) {
    throw IoError("cannot make {} for the checkpoint's tokenizer: {}", path_,
                  base::errno_text(errno));
  }
  for (const auto& [name, text] : files) {
    if (is_tokenizer_file(name)) {
      base::write_file_atomically((fs::path(path_) / name).string(), text);
    }
  }
}

TokenizerFolder::~TokenizerFolder() {
  std::error_code ignored;
  if (!path_.empty()) {
    fs::remove_all(path_, ignored);
  }
}

void export_pretrained(const ConfiguredModule& model, ModelFiles files, const std::string& folder) {
  save_pretrained(model, folder);
  complete_tokenizer_config(files);
  for (const auto& [name, text] : files) {
    base::write_file_atomically((fs::path(folder) / name).string(), text);
  }
}

}  // namespace lockstep::train
