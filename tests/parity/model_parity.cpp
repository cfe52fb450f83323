// The C++ side of models_parity.py: loads what Python saved, computes what Python computed, and
// saves the model for Python to load.
//
//   model_parity WEIGHTS INPUTS.safetensors OUTPUTS.safetensors FOLDER

#include <iostream>

#include <lockstep/models/auto_model.h>
#include <lockstep/weights/save.h>

#include "models/golden.h"

namespace lockstep::test {
namespace {

void run_parity(const std::string& weights, const std::string& inputs, const std::string& outputs,
                const std::string& folder) {
  const AutoModel model = AutoModel::from_pretrained(weights);
  std::vector<NamedTensor> results;
  for (const auto& [name, tensor] : run(*model.module(), {read_tensors(inputs)})) {
    if (tensor.defined()) {
      results.push_back({name, tensor});
    }
  }
  save_weights(outputs, results);
  save_pretrained(*model.module(), folder);
  save_state(*model.module(), folder + "/state.pth");
}

}  // namespace
}  // namespace lockstep::test

int main(int argc, char** argv) {
  if (argc != 5) {
    std::cerr << "usage: model_parity WEIGHTS INPUTS.safetensors OUTPUTS.safetensors FOLDER\n";
    return 2;
  }
  try {
    lockstep::test::run_parity(argv[1], argv[2], argv[3], argv[4]);
  } catch (const std::exception& error) {
    std::cerr << "model_parity: " << error.what() << "\n";
    return 1;
  }
  return 0;
}
