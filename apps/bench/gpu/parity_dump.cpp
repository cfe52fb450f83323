#include "bench/gpu/parity_dump.h"

#include <filesystem>
#include <map>
#include <vector>

#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>

#include <lockstep/weights/save.h>

#include "bench/gpu/parity_models.h"

namespace lockstep {

void dump_for_parity(const std::string& folder, const std::string& model, const ParityRun& run) {
  const std::shared_ptr<BenchModel> module = make_parity_model(model);
  std::vector<NamedTensor> tensors;
  for (const auto& parameter : module->named_parameters()) {
    tensors.push_back({"initial." + parameter.key(), parameter.value().detach()});
  }
  std::vector<at::Tensor> inputs;
  std::vector<at::Tensor> targets;
  const ParityBatches batches(*module);
  for (int step = 0; step < static_cast<int>(run.losses.size()); ++step) {
    const BenchBatch& batch = batches.of_step(step);
    inputs.push_back(batch.input);
    targets.push_back(batch.target);
  }
  tensors.push_back({"inputs", at::stack(inputs)});
  tensors.push_back({"targets", at::stack(targets)});
  tensors.push_back({"losses", at::tensor(run.losses, at::kDouble)});
  const auto file = std::filesystem::path(folder) / (model + ".safetensors");
  save_weights(file.string(), tensors, {{"model", model}});
}

}  // namespace lockstep
