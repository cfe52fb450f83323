#include "train/step/parameter_groups.h"

#include <algorithm>
#include <regex>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/module.h>

#include <lockstep/base/error.h>

#include "train/option_ranges.h"

namespace lockstep::train {
namespace {

constexpr size_t kNamesShown = 12;

void check_group(const ParameterGroup& group) {
  if (group.name.empty()) {
    throw UsageError("trainer: a parameter group has no name; give it one, such as \"embedding\"");
  }
  if (group.pattern.empty() == !group.takes) {
    throw UsageError(
        "trainer: the parameter group \"{}\" has {} of `pattern` and `takes`; it needs one of them "
        "to say which parameters it takes",
        group.name, group.pattern.empty() ? "none" : "both");
  }
  if (!ranges::kLrScale.contains(group.lr_scale)) {
    throw UsageError("trainer: lr_scale = {} of the parameter group \"{}\" is not in {}",
                     group.lr_scale, group.name, ranges::kLrScale.text());
  }
  if (group.weight_decay && !ranges::kWeightDecay.contains(*group.weight_decay)) {
    throw UsageError("trainer: weight_decay = {} of the parameter group \"{}\" is not in {}",
                     *group.weight_decay, group.name, ranges::kWeightDecay.text());
  }
  if (group.is_frozen && (group.lr_scale != 1 || group.weight_decay)) {
    throw UsageError(
        "trainer: the parameter group \"{}\" is frozen, and {} has no effect beside that; take one "
        "of the two out",
        group.name, group.weight_decay ? "weight_decay" : "lr_scale");
  }
}

using Takes = std::function<bool(const std::string&, const at::Tensor&)>;

Takes rule_of(const ParameterGroup& group) {
  if (group.takes) {
    return group.takes;
  }
  try {
    return [expression = std::regex(group.pattern)](const std::string& name, const at::Tensor&) {
      return std::regex_search(name, expression);
    };
  } catch (const std::regex_error& error) {
    throw UsageError(
        "trainer: the pattern \"{}\" of the parameter group \"{}\" is no regular expression: {}",
        group.pattern, group.name, error.what());
  }
}

std::string shown(const std::optional<double>& weight_decay) {
  return weight_decay ? fmt::format("{}", *weight_decay) : "as without a group";
}

}  // namespace

std::vector<NamedTensor> unique_parameters(const torch::nn::Module& module) {
  std::vector<NamedTensor> all;
  std::set<const void*> seen;
  for (const auto& item : module.named_parameters()) {
    if (seen.insert(item.value().unsafeGetTensorImpl()).second) {
      all.push_back({item.key(), item.value()});
    }
  }
  return all;
}

AssignedParameters::AssignedParameters(const torch::nn::Module& module,
                                       const TrainerOptions& options)
    : groups_(options.groups), weight_decay_(options.weight_decay) {
  assign(module);
  check_taken();
}

void AssignedParameters::assign(const torch::nn::Module& module) {
  std::vector<Takes> rules;
  for (const ParameterGroup& group : groups_) {
    check_group(group);
    rules.push_back(rule_of(group));
  }
  for (auto& [name, parameter] : unique_parameters(module)) {
    size_t group = 0;
    while (group < rules.size() && !rules[group](name, parameter)) {
      ++group;
    }
    all_.push_back({name, parameter, group < rules.size() ? &groups_[group] : nullptr});
  }
}

// A group that takes nothing is a mistake in a name, and what it was for would not happen.
void AssignedParameters::check_taken() const {
  std::set<std::string> names;
  for (const ParameterGroup& group : groups_) {
    if (!names.insert(group.name).second) {
      throw UsageError("trainer: two parameter groups have the name \"{}\"", group.name);
    }
    if (std::none_of(all_.begin(), all_.end(),
                     [&](const Assigned& one) { return one.group == &group; })) {
      throw UsageError(
          "trainer: the parameter group \"{}\"{} takes no parameter that an earlier group has not "
          "taken; the model has {}",
          group.name, group.pattern.empty() ? "" : fmt::format(" (pattern \"{}\")", group.pattern),
          some_names());
    }
  }
}

std::string AssignedParameters::some_names() const {
  std::vector<std::string> names;
  for (size_t i = 0; i < std::min(all_.size(), kNamesShown); ++i) {
    names.push_back(all_[i].name);
  }
  return fmt::format(
      "{}{}", fmt::join(names, ", "),
      all_.size() > kNamesShown ? fmt::format(" and {} more", all_.size() - kNamesShown) : "");
}

void AssignedParameters::freeze() const {
  for (const Assigned& one : all_) {
    if (one.group != nullptr && one.group->is_frozen) {
      one.parameter.set_requires_grad(false);
    }
  }
}

std::vector<UpdateGroup> AssignedParameters::to_update() const {
  constexpr size_t kKinds = 2;  // of each group: matrices, then vectors
  std::vector<UpdateGroup> updated((groups_.size() + 1) * kKinds);
  updated[0].weight_decay = weight_decay_;
  for (size_t i = 0; i < groups_.size(); ++i) {
    for (size_t kind = 0; kind < kKinds; ++kind) {
      UpdateGroup& made = updated[(i + 1) * kKinds + kind];
      made.lr_scale = groups_[i].lr_scale;
      made.weight_decay = groups_[i].weight_decay.value_or(updated[kind].weight_decay);
    }
  }
  size_t num_updated = 0;
  for (const Assigned& one : all_) {
    if (!one.parameter.requires_grad() || (one.group != nullptr && one.group->is_frozen)) {
      continue;
    }
    const auto number = one.group == nullptr ? 0 : one.group - groups_.data() + 1;
    const size_t kind = one.parameter.dim() >= 2 ? 0 : 1;
    UpdateGroup& group = updated[static_cast<size_t>(number) * kKinds + kind];
    group.names.push_back(one.name);
    group.parameters.push_back(one.parameter);
    ++num_updated;
  }
  if (num_updated == 0 && !groups_.empty()) {
    throw UsageError(
        "trainer: the parameter groups leave nothing to train: all parameters are frozen");
  }
  return updated;
}

std::vector<std::string> AssignedParameters::description() const {
  std::vector<std::string> lines;
  if (groups_.empty()) {
    return lines;
  }
  for (const ParameterGroup& group : groups_) {
    lines.push_back(group.is_frozen
                        ? fmt::format("group \"{}\" is frozen", group.name)
                        : fmt::format("group \"{}\" has lr_scale = {}, weight_decay = {}",
                                      group.name, group.lr_scale, shown(group.weight_decay)));
  }
  for (const Assigned& one : all_) {
    lines.push_back(one.group == nullptr
                        ? fmt::format("{} is in no group", one.name)
                        : fmt::format("{} is in group \"{}\"", one.name, one.group->name));
  }
  return lines;
}

}  // namespace lockstep::train
