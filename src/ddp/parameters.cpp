#include "ddp/parameters.h"

#include <algorithm>
#include <set>

#include <fmt/ranges.h>
#include <torch/nn/modules/embedding.h>

#include <lockstep/base/error.h>

namespace lockstep::ddp {
namespace {

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Each tensor once, under its first name: a tied weight is registered twice.
template <typename Items>
NamedTensors unique_tensors(const Items& items, const std::vector<std::string>& ignored) {
  NamedTensors tensors;
  std::set<void*> seen;
  for (const auto& item : items) {
    if (item.value().defined() && !contains(ignored, item.key()) &&
        seen.insert(item.value().unsafeGetTensorImpl()).second) {
      tensors.emplace_back(item.key(), item.value());
    }
  }
  return tensors;
}

std::set<void*> sparse_weights(const torch::nn::Module& module) {
  std::set<void*> weights;
  for (const auto& part : module.modules()) {
    if (const auto* embedding = part->as<torch::nn::EmbeddingImpl>()) {
      if (embedding->options.sparse()) {
        weights.insert(embedding->weight.unsafeGetTensorImpl());
      }
    } else if (const auto* bag = part->as<torch::nn::EmbeddingBagImpl>()) {
      if (bag->options.sparse()) {
        weights.insert(bag->weight.unsafeGetTensorImpl());
      }
    }
  }
  return weights;
}

void check_names(const torch::nn::Module& module, const std::vector<std::string>& ignored) {
  const auto parameters = module.named_parameters();
  const auto buffers = module.named_buffers();
  for (const std::string& name : ignored) {
    if (!parameters.contains(name) && !buffers.contains(name)) {
      throw UsageError("ddp: ignored names '{}', which the model does not have", name);
    }
  }
}

// model->to(torch::kDouble) leaves every tensor where it was and puts other memory into it, which
// the buckets do not fit; libtorch forgets the hooks with it.
void check_types(const ModelTensors& before) {
  for (const TrainedParameter& parameter : before.trained) {
    const at::Tensor& tensor = parameter.tensor;
    if (tensor.scalar_type() != parameter.type) {
      throw UsageError(
          "ddp: parameter '{}' was {} when the model was wrapped and is {} now, but its gradient's "
          "memory was made then; call model->to(...) before making the DistributedDataParallel, "
          "or make a new one after it",
          parameter.name, c10::toString(parameter.type), c10::toString(tensor.scalar_type()));
    }
    if (tensor.sizes() != at::IntArrayRef(parameter.sizes)) {
      throw UsageError(
          "ddp: parameter '{}' had the shape [{}] when the model was wrapped and has [{}] now; "
          "make a new DistributedDataParallel after such a change",
          parameter.name, fmt::join(parameter.sizes, ", "), fmt::join(tensor.sizes(), ", "));
    }
    if (tensor.device() != parameter.device) {
      throw UsageError(
          "ddp: parameter '{}' was on {} when the model was wrapped and is on {} now, but its "
          "gradient's memory was made there; call model->to(...) before making the "
          "DistributedDataParallel, or make a new one after it",
          parameter.name, parameter.device.str(), tensor.device().str());
    }
  }
}

}  // namespace

ModelTensors tensors_of(const torch::nn::Module& module, const std::vector<std::string>& ignored) {
  check_names(module, ignored);
  ModelTensors tensors{.trained = {},
                       .parameters = unique_tensors(module.named_parameters(), ignored),
                       .buffers = unique_tensors(module.named_buffers(), ignored)};
  const std::set<void*> sparse = sparse_weights(module);
  for (const auto& [name, tensor] : tensors.parameters) {
    if (tensor.requires_grad()) {
      tensors.trained.push_back(
          {.name = name,
           .tensor = tensor,
           .has_sparse_gradient = sparse.count(tensor.unsafeGetTensorImpl()) != 0,
           .type = tensor.scalar_type(),
           .sizes = tensor.sizes().vec(),
           .device = tensor.device()});
    }
  }
  if (tensors.trained.empty()) {
    throw UsageError(
        "ddp: the model has no parameter that requires a gradient; is everything frozen?");
  }
  return tensors;
}

void check_one_device(const ModelTensors& tensors) {
  const auto& [first_name, first] = tensors.parameters.front();
  const auto check = [&, &first_name = first_name, &first = first](
                         const char* what, const NamedTensors& named, bool may_be_on_cpu) {
    for (const auto& [name, tensor] : named) {
      if (tensor.device() != first.device() && !(may_be_on_cpu && tensor.is_cpu())) {
        throw UsageError(
            "ddp: the model is spread over several devices: parameter '{}' is on {}, {} '{}' on "
            "{}; give every rank the whole model on one device: model->to(device)",
            first_name, first.device().str(), what, name, tensor.device().str());
      }
    }
  };
  check("parameter", tensors.parameters, false);
  check("buffer", tensors.buffers, true);
}

void check_unchanged(const torch::nn::Module& module, const std::vector<std::string>& ignored,
                     const ModelTensors& before) {
  check_types(before);
  size_t next = 0;
  for (const auto& [name, tensor] : unique_tensors(module.named_parameters(), ignored)) {
    if (!tensor.requires_grad()) {
      continue;
    }
    const bool is_known =
        next < before.trained.size() &&
        before.trained[next].tensor.unsafeGetTensorImpl() == tensor.unsafeGetTensorImpl();
    if (is_known) {
      ++next;
      continue;
    }
    // Frozen ones are skipped over: they are missed in backward, by name.
    const auto known = std::find_if(
        before.trained.begin(), before.trained.end(), [&tensor = tensor](const auto& parameter) {
          return parameter.tensor.unsafeGetTensorImpl() == tensor.unsafeGetTensorImpl();
        });
    if (known == before.trained.end()) {
      throw UsageError(
          "ddp: parameter '{}' was added, replaced or unfrozen after the model was wrapped, so its "
          "gradient would not be synchronised; make a new DistributedDataParallel after such a "
          "change",
          name);
    }
    next = static_cast<size_t>(known - before.trained.begin()) + 1;
  }
}

}  // namespace lockstep::ddp
