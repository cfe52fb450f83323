#pragma once

// What a model needs beside its weights to be used, as files: config.json and those of its
// tokenizer, under the names that transformers knows. A checkpoint keeps them, `lockstep eval`
// makes the model of them, and an export is the weights and these.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include <lockstep/tokenizers/tokenizer.h>

namespace lockstep {
class ConfiguredModule;
struct ModelConfig;
}  // namespace lockstep

namespace lockstep::train {

using ModelFiles = std::map<std::string, std::string>;  // content by name

inline constexpr const char* kModelConfigFile = "config.json";

// What config.json says that the model itself does not know.
struct ModelNotes {
  std::string original;             // config.json of the weights that training began with
  std::vector<std::string> labels;  // names of the classes; empty: the original's, or LABEL_0 ...
  std::optional<SpecialIds> specials;  // of the tokenizer; nothing: the original's
};

// config.json: what the original says, except where the model knows better. Fields that were true
// of the original's files alone (its name, its weights' type) are left out.
std::string model_config_text(const ModelConfig& config, const ModelNotes& notes);

// The names of the classes in a config.json, in their order; empty where it has none.
std::vector<std::string> labels_of(const std::string& config_text);

// All that load_tokenizer() reads at `location`, a folder or a file, and what transformers reads
// beside it. Throws IoError.
ModelFiles tokenizer_files(const std::string& location);

// A tokenizer.json whose tokens are the 256 bytes.
ModelFiles byte_tokenizer_files();

bool is_tokenizer_file(const std::string& name);

// The tokenizer among the files as a folder for load_tokenizer(), for as long as this lives.
class TokenizerFolder {
 public:
  explicit TokenizerFolder(const ModelFiles& files);
  ~TokenizerFolder();
  TokenizerFolder(const TokenizerFolder&) = delete;
  TokenizerFolder& operator=(const TokenizerFolder&) = delete;

  const std::string& path() const { return path_; }  // empty: there is none among them

 private:
  std::string path_;
};

// Writes all that transformers needs to load the model with its tokenizer into `folder`. Throws
// IoError.
void export_pretrained(const ConfiguredModule& model, ModelFiles files, const std::string& folder);

}  // namespace lockstep::train
