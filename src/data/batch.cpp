#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <lockstep/base/error.h>
#include <lockstep/data/batch.h>

#include "base/text/text.h"

namespace lockstep {

namespace {

constexpr std::string_view kInput = "input";
constexpr std::string_view kTarget = "target";

// Null if the map has no such name.
const at::Tensor* find_tensor(const TensorMap& map, std::string_view name) {
  const auto found = std::find_if(map.begin(), map.end(),
                                  [&](const TensorMap::Item& item) { return item.first == name; });
  return found != map.end() ? &found->second : nullptr;
}

const at::Tensor* find_tensor(const Batch& batch, std::string_view name) {
  if (name == kInput) {
    return &batch.input;
  }
  return name == kTarget ? &batch.target : find_tensor(batch.more, name);
}

}  // namespace

TensorMap::TensorMap(std::initializer_list<Item> items) {
  for (const auto& [name, tensor] : items) {
    if (find(name).defined()) {
      throw UsageError("batch: two tensors have the name \"{}\"; give each a name of its own",
                       name);
    }
    set(name, tensor);
  }
}

void TensorMap::set(const std::string& name, at::Tensor tensor) {
  if (name.empty()) {
    throw UsageError("batch: a tensor has no name; give it one, such as \"attention_mask\"");
  }
  if (name == kInput || name == kTarget) {
    throw UsageError("batch: \"{}\" is a field and no further name; write .{} = ...", name, name);
  }
  if (!tensor.defined()) {
    throw UsageError(
        "batch: the tensor \"{}\" is undefined; leave the name out where there is none", name);
  }
  const auto found = std::find_if(items_.begin(), items_.end(),
                                  [&](const Item& item) { return item.first == name; });
  if (found != items_.end()) {
    found->second = std::move(tensor);
  } else {
    items_.emplace_back(name, std::move(tensor));
  }
}

at::Tensor TensorMap::find(std::string_view name) const {
  const at::Tensor* found = find_tensor(*this, name);
  return found != nullptr ? *found : at::Tensor();
}

at::Tensor Batch::find(std::string_view name) const {
  const at::Tensor* found = find_tensor(*this, name);
  return found != nullptr ? *found : at::Tensor();
}

const at::Tensor& Batch::operator[](std::string_view name) const {
  const at::Tensor* found = find_tensor(*this, name);
  if (found == nullptr || !found->defined()) {
    const std::vector<std::string> known = names();
    const std::string wanted(name);
    throw UsageError("batch: there is no tensor \"{}\"; there is {}{}", wanted,
                     known.empty() ? "none at all" : fmt::format("{}", fmt::join(known, ", ")),
                     base::did_you_mean(wanted, known));
  }
  return *found;
}

void Batch::set(const std::string& name, at::Tensor tensor) {
  if (name == kInput) {
    input = std::move(tensor);
  } else if (name == kTarget) {
    target = std::move(tensor);
  } else {
    more.set(name, std::move(tensor));
  }
}

std::vector<std::string> Batch::names() const {
  std::vector<std::string> names;
  for_each_tensor([&](const std::string& name, const at::Tensor&) { names.push_back(name); });
  return names;
}

int64_t Batch::num_samples() const {
  if (!target.defined() && !input.defined() && more.empty()) {
    throw UsageError("batch: it holds no tensor, and so no samples to count");
  }
  const bool has_field = target.defined() || input.defined();
  const std::string field(target.defined() ? kTarget : kInput);
  const std::string name = has_field ? field : more.begin()->first;
  const at::Tensor& first = (*this)[name];
  if (first.dim() == 0) {
    throw UsageError(
        "batch: \"{}\" is a single number; its first dimension must be the samples of the batch",
        name);
  }
  return first.size(0);
}

void Batch::for_each_tensor(const Visit& visit) const {
  if (input.defined()) {
    visit(std::string(kInput), input);
  }
  if (target.defined()) {
    visit(std::string(kTarget), target);
  }
  for (const auto& [name, tensor] : more) {
    visit(name, tensor);
  }
}

Batch Batch::map(const Change& change) const {
  Batch changed;
  std::vector<std::pair<at::Tensor, at::Tensor>> known;  // before and after
  for_each_tensor([&](const std::string& name, const at::Tensor& tensor) {
    auto found = std::find_if(known.begin(), known.end(),
                              [&](const auto& pair) { return pair.first.is_same(tensor); });
    if (found == known.end()) {
      found = known.emplace(known.end(), tensor, change(tensor));
    }
    changed.set(name, found->second);
  });
  return changed;
}

Batch Batch::to(at::Device device, BatchCopyOptions options) const {
  return map([&](const at::Tensor& tensor) {
    return tensor.to(tensor.options().device(device), options.non_blocking);
  });
}

Batch Batch::pin_memory() const {
  // Dense first: pinned in strides, it would be copied again, and an expanded tensor cannot be.
  return map([](const at::Tensor& tensor) {
    return tensor.is_cpu() ? tensor.contiguous().pin_memory() : tensor;
  });
}

}  // namespace lockstep
