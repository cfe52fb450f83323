#include <filesystem>

#include <lockstep/models/auto_model.h>
#include <lockstep/weights/save.h>

#include "base/unique_fd.h"

namespace lockstep {
namespace {

std::vector<NamedTensor> named_state_of(const torch::nn::Module& model) {
  std::vector<NamedTensor> tensors;
  for (const auto& items : {model.named_parameters(), model.named_buffers()}) {
    for (const auto& item : items) {
      tensors.push_back({item.key(), item.value()});
    }
  }
  return tensors;
}

}  // namespace

void save_pretrained(const ConfiguredModule& model, const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    throw IoError("cannot make the folder {}: {}", folder, error.message());
  }
  // transformers refuses a file that does not say which framework's names it has.
  save_weights(folder + "/model.safetensors", named_state_of(model), {{"format", "pt"}});
  base::write_file_atomically(folder + "/config.json", config_json(model.config()));
}

void save_state(const torch::nn::Module& model, const std::string& path) {
  save_weights(path, named_state_of(model));
}

}  // namespace lockstep
