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

constexpr size_t kNoGroup = SIZE_MAX;
constexpr size_t kNamesShown = 12;

struct Assigned {
  std::string name;
  at::Tensor parameter;
  size_t group = kNoGroup;
};

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

std::string some_names(const std::vector<Assigned>& all) {
  std::vector<std::string> names;
  for (size_t i = 0; i < std::min(all.size(), kNamesShown); ++i) {
    names.push_back(all[i].name);
  }
  return fmt::format(
      "{}{}", fmt::join(names, ", "),
      all.size() > kNamesShown ? fmt::format(" and {} more", all.size() - kNamesShown) : "");
}

// A group that takes nothing is a mistake in a name, and what it was for would not happen.
void check_taken(const std::vector<ParameterGroup>& groups, const std::vector<Assigned>& all) {
  std::set<std::string> names;
  for (size_t i = 0; i < groups.size(); ++i) {
    if (!names.insert(groups[i].name).second) {
      throw UsageError("trainer: two parameter groups have the name \"{}\"", groups[i].name);
    }
    if (std::none_of(all.begin(), all.end(), [&](const Assigned& one) { return one.group == i; })) {
      throw UsageError(
          "trainer: the parameter group \"{}\"{} takes no parameter that an earlier group has not "
          "taken; the model has {}",
          groups[i].name,
          groups[i].pattern.empty() ? "" : fmt::format(" (pattern \"{}\")", groups[i].pattern),
          some_names(all));
    }
  }
}

std::vector<Assigned> assign(const torch::nn::Module& module, const TrainerOptions& options) {
  std::vector<Takes> rules;
  for (const ParameterGroup& group : options.groups) {
    check_group(group);
    rules.push_back(rule_of(group));
  }
  std::vector<Assigned> all;
  for (auto& [name, parameter] : unique_parameters(module)) {
    size_t group = 0;
    while (group < rules.size() && !rules[group](name, parameter)) {
      ++group;
    }
    all.push_back({name, parameter, group < rules.size() ? group : kNoGroup});
  }
  check_taken(options.groups, all);
  return all;
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

std::vector<UpdateGroup> group_parameters(const torch::nn::Module& module,
                                          const TrainerOptions& options) {
  constexpr size_t kKinds = 2;  // of each group: matrices, then vectors
  std::vector<UpdateGroup> groups((options.groups.size() + 1) * kKinds);
  groups[0].weight_decay = options.weight_decay;
  for (size_t i = 0; i < options.groups.size(); ++i) {
    const ParameterGroup& group = options.groups[i];
    for (size_t kind = 0; kind < kKinds; ++kind) {
      UpdateGroup& made = groups[(i + 1) * kKinds + kind];
      made.lr_scale = group.lr_scale;
      made.weight_decay = group.weight_decay.value_or(groups[kind].weight_decay);
    }
  }
  size_t num_updated = 0;
  for (const Assigned& one : assign(module, options)) {
    const bool is_grouped = one.group != kNoGroup;
    if (!one.parameter.requires_grad() || (is_grouped && options.groups[one.group].is_frozen)) {
      continue;
    }
    const size_t kind = one.parameter.dim() >= 2 ? 0 : 1;
    UpdateGroup& group = groups[(is_grouped ? one.group + 1 : 0) * kKinds + kind];
    group.names.push_back(one.name);
    group.parameters.push_back(one.parameter);
    ++num_updated;
  }
  if (num_updated == 0 && !options.groups.empty()) {
    throw UsageError(
        "trainer: the parameter groups leave nothing to train: all parameters are frozen");
  }
  return groups;
}

void freeze_parameters(const torch::nn::Module& module, const TrainerOptions& options) {
  if (options.groups.empty()) {
    return;
  }
  for (Assigned& one : assign(module, options)) {
    if (one.group != kNoGroup && options.groups[one.group].is_frozen) {
      one.parameter.set_requires_grad(false);
    }
  }
}

std::vector<std::string> describe_groups(const torch::nn::Module& module,
                                         const TrainerOptions& options) {
  std::vector<std::string> lines;
  if (options.groups.empty()) {
    return lines;
  }
  for (const ParameterGroup& group : options.groups) {
    lines.push_back(group.is_frozen
                        ? fmt::format("group \"{}\" is frozen", group.name)
                        : fmt::format("group \"{}\" has lr_scale = {}, weight_decay = {}",
                                      group.name, group.lr_scale, shown(group.weight_decay)));
  }
  for (const Assigned& one : assign(module, options)) {
    lines.push_back(one.group == kNoGroup ? fmt::format("{} is in no group", one.name)
                                          : fmt::format("{} is in group \"{}\"", one.name,
                                                        options.groups[one.group].name));
  }
  return lines;
}

}  // namespace lockstep::train
