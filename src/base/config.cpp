#include "base/config.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <sstream>
#include <type_traits>

#include <toml++/toml.h>

#include <lockstep/base/error.h>

#include "base/text/text.h"
#include "base/unique_fd.h"

namespace lockstep::base {
namespace {

using Leaf = std::variant<bool, int64_t, double, std::string>;

constexpr const char* kFromSet = "--set";  // the origin of what is not in the file

std::string type_name(const Leaf& value) {
  static const char* const kNames[] = {"true or false", "a whole number", "a number", "a text"};
  return kNames[value.index()];
}

std::string to_toml(const Leaf& value) {
  return std::visit(
      [](const auto& v) -> std::string {
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_same_v<T, std::string>) {
          std::ostringstream text;
          text << toml::value<std::string>(v);
          return text.str();
        } else if constexpr (std::is_same_v<T, double>) {
          // 3.0, not 3: what is read back must be a real again
          const std::string text = fmt::format("{}", v);
          return text.find_first_of(".en") == std::string::npos ? text + ".0" : text;
        } else {
          return fmt::format("{}", v);
        }
      },
      value);
}

toml::table parse(const std::string& text, const std::string& name) {
  try {
    return toml::parse(text, name);
  } catch (const toml::parse_error& error) {
    throw UsageError("{}:{}: {}", name, error.source().begin.line,
                     std::string(error.description()));
  }
}

Leaf leaf_of(const toml::node& node, const std::string& where, const std::string& key) {
  if (const auto* v = node.as_boolean()) return v->get();
  if (const auto* v = node.as_integer()) return static_cast<int64_t>(v->get());
  if (const auto* v = node.as_floating_point()) return v->get();
  if (const auto* v = node.as_string()) return v->get();
  throw UsageError("{}: {} is a list or a date; only texts, numbers, true and false are used here",
                   where, key);
}

bool is_list_of_tables(const toml::node& node) {
  const toml::array* list = node.as_array();
  return list != nullptr && list->is_array_of_tables();
}

}  // namespace

std::string ConfigRange::text() const {
  return fmt::format("{}{}, {}{}", excludes_min ? '(' : '[', min, max, excludes_max ? ')' : ']');
}

Config Config::from_file(const std::string& path) {
  try {
    Config config = from_text(read_file(path), path);
    config.folder_ = std::filesystem::path(path).parent_path().string();
    return config;
  } catch (const IoError& error) {
    throw UsageError("recipe: {}", error.what());
  }
}

Config Config::from_text(const std::string& text, const std::string& name) {
  Config config;
  const toml::table table = parse(text, name);
  const auto walk = [&](const auto& self, const toml::node& node, const std::string& key) -> void {
    const std::string where = fmt::format("{}:{}", name, node.source().begin.line);
    if (const auto* section = node.as_table()) {
      for (const auto& [inner, value] : *section) {
        self(self, value, (key.empty() ? "" : key + ".") + std::string(inner.str()));
      }
    } else if (is_list_of_tables(node)) {
      for (size_t i = 0; i < node.as_array()->size(); ++i) {
        const toml::node& one = *node.as_array()->get(i);
        if (one.as_table()->empty()) {
          throw UsageError("{}:{}: this [[{}]] is empty; give it a setting, or take it out", name,
                           one.source().begin.line, key);
        }
        self(self, one, fmt::format("{}.{}", key, i));
      }
    } else {
      config.entries_[key] = {leaf_of(node, where, key), where, /*in_file=*/true};
    }
  };
  walk(walk, table, "");
  return config;
}

void Config::set(const std::string& assignment) {
  const size_t equals = assignment.find('=');
  if (equals == std::string::npos || equals == 0) {
    throw UsageError("--set {}: write section.key=value, for example --set train.lr=0.01",
                     assignment);
  }
  const std::string key = assignment.substr(0, equals);
  const std::string text = assignment.substr(equals + 1);
  Value value = text;  // a bare word is a string
  try {
    const toml::table table = toml::parse("value = " + text);
    value = leaf_of(*table.get("value"), kFromSet, key);
  } catch (const toml::parse_error&) {
    value = text;
  }
  entries_[key] = {value, kFromSet};
}

bool Config::has_section(const std::string& section) const {
  const auto first = entries_.lower_bound(section + ".");
  return first != entries_.end() && first->first.starts_with(section + ".");
}

bool Config::is_set_here(const std::string& key) const {
  const auto found = entries_.find(key);
  return found != entries_.end() && found->second.origin == kFromSet;
}

void Config::forget_in_file(const std::string& key) {
  if (!is_set_here(key)) {
    entries_.erase(key);
  }
}

template <typename T>
const Config::Entry* Config::take(const std::string& key, T& value) {
  const auto found = entries_.find(key);
  const Entry* entry = found == entries_.end() ? nullptr : &found->second;
  defaults_[key] = value;
  if (entry != nullptr) {
    const T* same = std::get_if<T>(&entry->value);
    const auto* whole = std::get_if<int64_t>(&entry->value);
    if (same != nullptr) {
      value = *same;
    } else if (std::is_same_v<T, double> && whole != nullptr) {
      if constexpr (std::is_same_v<T, double>) {
        value = static_cast<double>(*whole);
      }
    } else {
      throw UsageError("{}: {} must be {}, not {}", entry->origin, key, type_name(Value(T{})),
                       to_toml(entry->value));
    }
  }
  effective_[key] = value;
  return entry;
}

namespace {

template <typename T>
void check_range(const std::string& origin, const std::string& key, T value, Config::Range range) {
  if (!range.contains(static_cast<double>(value))) {
    throw UsageError("{}: {} = {} is not in {}", origin, key, value, range.text());
  }
}

}  // namespace

void Config::read(const std::string& key, bool& value) {
  take(key, value);
}

void Config::read(const std::string& key, int64_t& value, Range range) {
  const Entry* entry = take(key, value);
  check_range(entry == nullptr ? "default" : entry->origin, key, value, range);
}

void Config::read(const std::string& key, double& value, Range range) {
  const Entry* entry = take(key, value);
  check_range(entry == nullptr ? "default" : entry->origin, key, value, range);
}

void Config::read(const std::string& key, std::optional<double>& value, Range range) {
  if (!is_set(key) && !value) {
    without_default_.insert(key);
    return;
  }
  double number = value.value_or(0);
  read(key, number, range);
  value = number;
}

void Config::read(const std::string& key, std::string& value,
                  const std::vector<std::string>& choices) {
  const Entry* entry = take(key, value);
  if (choices.empty() || std::find(choices.begin(), choices.end(), value) != choices.end()) {
    return;
  }
  throw UsageError("{}: {} = \"{}\" is not one of: {}",
                   entry == nullptr ? "default" : entry->origin, key, value,
                   fmt::join(choices, ", "));
}

std::vector<std::string> Config::known_keys() const {
  std::vector<std::string> keys(without_default_.begin(), without_default_.end());
  for (const auto& [key, value] : effective_) {
    keys.push_back(key);
  }
  std::sort(keys.begin(), keys.end());
  return keys;
}

std::string Config::meant_by(const std::string& key,
                             const std::map<std::string, std::string>& other_names) const {
  const auto last_part = [](const std::string& name) { return name.substr(name.rfind('.') + 1); };
  const std::string section = key.substr(0, key.rfind('.') + 1);  // with its dot
  const std::vector<std::string> known = known_keys();
  std::vector<std::string> last_parts;
  for (const std::string& name : known) {
    last_parts.push_back(last_part(name));
  }
  const auto with_last_part = [&](const std::string& wanted) -> std::string {
    if (std::find(known.begin(), known.end(), section + wanted) != known.end()) {
      return section + wanted;
    }
    const auto found = std::find(last_parts.begin(), last_parts.end(), wanted);
    return found == last_parts.end() ? "" : known[static_cast<size_t>(found - last_parts.begin())];
  };
  if (const auto other = other_names.find(last_part(key)); other != other_names.end()) {
    if (const std::string ours = with_last_part(other->second); !ours.empty()) {
      return ours;
    }
  }
  const std::string elsewhere = with_last_part(last_part(key));  // in another section, or in none
  return elsewhere.empty() ? nearest(key, known) : elsewhere;
}

void Config::finish(const std::map<std::string, std::string>& other_names) const {
  for (const auto& [key, entry] : entries_) {
    if (effective_.count(key) > 0) {
      continue;
    }
    if (const std::string meant = meant_by(key, other_names); !meant.empty()) {
      throw UsageError("{}: there is no setting {}; did you mean {}?", entry.origin, key, meant);
    }
    const std::string section = key.substr(0, key.rfind('.') + 1);
    const std::vector<std::string> all = known_keys();
    std::vector<std::string> of_section;
    for (const std::string& name : all) {
      if (!section.empty() && name.starts_with(section)) {
        of_section.push_back(name);
      }
    }
    throw UsageError("{}: there is no setting {}; known: {}", entry.origin, key,
                     fmt::join(of_section.empty() ? all : of_section, ", "));
  }
}

namespace {

// Each path of a value that is relative, put through `change`.
std::string with_paths(const std::string& value, const ConfigPath& kind,
                       const std::function<std::string(const std::string&)>& change) {
  std::string all;
  for (size_t begin = 0; begin <= value.size();) {
    const size_t end = kind.is_list ? std::min(value.find(',', begin), value.size()) : value.size();
    std::string path = value.substr(begin, end - begin);
    if (kind.is_list) {
      path.erase(0, path.find_first_not_of(' '));
      path.erase(path.find_last_not_of(' ') + 1);
    }
    const bool is_relative = !path.empty() && path != kind.word && path.front() != '/' &&
                             path.find("://") == std::string::npos;
    all += (begin > 0 ? "," : "") + (is_relative ? change(path) : path);
    begin = end + 1;
  }
  return all;
}

std::string text_of(const std::map<std::string, Leaf>& values) {
  std::map<std::string, std::string> sections;
  for (const auto& [key, value] : values) {
    const size_t end = key.rfind('.');
    const bool is_in_section = end != std::string::npos;
    sections[is_in_section ? key.substr(0, end) : ""] +=
        fmt::format("{} = {}\n", is_in_section ? key.substr(end + 1) : key, to_toml(value));
  }
  // Keys without a section come first: in TOML nothing can follow a section and be outside it.
  std::string text;
  for (const auto& [section, lines] : sections) {
    text += section.empty() ? lines : fmt::format("\n[{}]\n{}", section, lines);
  }
  return text;
}

}  // namespace

void Config::read_path(const std::string& key, std::string& value, const ConfigPath& kind) {
  const Entry* entry = take(key, value);
  if (entry != nullptr && entry->in_file && !folder_.empty()) {
    value = with_paths(value, kind, [&](const std::string& path) {
      return (std::filesystem::path(folder_) / path).lexically_normal().string();
    });
    effective_[key] = value;
  }
  paths_[key] = kind;
}

std::string Config::effective() const {
  return text_of(effective_);
}

std::string Config::remembered() const {
  auto values = effective_;
  for (const auto& [key, kind] : paths_) {
    auto& value = std::get<std::string>(values.at(key));
    value = with_paths(value, kind, [](const std::string& path) {
      return std::filesystem::absolute(path).lexically_normal().string();
    });
  }
  return text_of(values);
}

std::string Config::defaults() const {
  return text_of(defaults_);
}

}  // namespace lockstep::base
