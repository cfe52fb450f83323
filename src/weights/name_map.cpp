#include "weights/name_map.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>

#include <lockstep/base/error.h>

namespace lockstep::weights {
namespace {

constexpr std::string_view kWrapper = "module.";

std::string without(std::string_view prefix, std::string_view name) {
  return std::string(name.starts_with(prefix) ? name.substr(prefix.size()) : name);
}

bool is_ignored(std::string_view name, const NameRules& rules) {
  return std::any_of(rules.ignored_ends.begin(), rules.ignored_ends.end(),
                     [&](const std::string& end) { return name.ends_with(end); });
}

// The one name for all ways to write it.
std::string canonical(std::string_view name, const NameRules& rules) {
  std::string plain = without(rules.prefix, name);
  for (const auto& [old_end, new_end] : rules.renamed_ends) {
    if (plain.ends_with(old_end)) {
      plain.replace(plain.size() - old_end.size(), old_end.size(), new_end);
    }
  }
  return plain;
}

// The tensors of a file by their canonical names.
class FileNames {
 public:
  FileNames(std::span<const std::string> names, const NameRules& rules, NameMap& result) {
    const bool wrapped = !names.empty() && std::all_of(names.begin(), names.end(), [](auto& name) {
      return name.starts_with(kWrapper);
    });
    std::vector<std::pair<std::string, std::string>> seconds;  // canonical first name, file's name
    for (const std::string& name : names) {
      const std::string plain = canonical(wrapped ? without(kWrapper, name) : name, rules);
      const auto tie = std::find_if(rules.ties.begin(), rules.ties.end(),
                                    [&](const auto& pair) { return pair.first == plain; });
      if (is_ignored(plain, rules)) {
        result.ignored.push_back(name);
      } else if (tie != rules.ties.end()) {
        seconds.emplace_back(tie->second, name);
      } else if (const auto [other, is_new] = by_name_.emplace(plain, name); !is_new) {
        throw FormatError("the weights \"{}\" and \"{}\" are both {}: which one is meant?",
                          other->second, name, plain);
      }
    }
    // Writers of safetensors keep one name of tied weights, and not always the first.
    for (const auto& [first, name] : seconds) {
      if (!by_name_.emplace(first, name).second) {
        result.tied.push_back(name);
      }
    }
  }

  // The file's name for it, and it is not surplus any more; null: not there.
  const std::string* take(const std::string& plain) {
    const auto found = by_name_.find(plain);
    if (found == by_name_.end()) {
      return nullptr;
    }
    taken_.insert(plain);
    return &found->second;
  }

  std::vector<std::string> rest() const {
    std::vector<std::string> names;
    for (const auto& [plain, name] : by_name_) {
      if (!taken_.contains(plain)) {
        names.push_back(name);
      }
    }
    return names;
  }

 private:
  std::map<std::string, std::string> by_name_;
  std::set<std::string> taken_;
};

}  // namespace

NameMap map_names(std::span<const std::string> model_names, std::span<const std::string> file_names,
                  const NameRules& rules) {
  NameMap result;
  FileNames names(file_names, rules, result);
  for (const std::string& model_name : model_names) {
    if (const std::string* file_name = names.take(canonical(model_name, rules))) {
      result.pairs.push_back({model_name, *file_name});
    } else {
      result.missing.push_back(model_name);
    }
  }
  result.surplus = names.rest();
  return result;
}

}  // namespace lockstep::weights
