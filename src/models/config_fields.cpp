#include "models/config_fields.h"

#include <fmt/ranges.h>

#include <lockstep/base/error.h>

#include "base/text/text.h"

namespace lockstep::models {
namespace {

std::vector<std::string> keys_of(const nlohmann::json& json) {
  std::vector<std::string> keys;
  for (const auto& item : json.items()) {
    keys.push_back(item.key());
  }
  return keys;
}

// A file can hold anything, of any length.
std::string shown(const nlohmann::json& value) {
  const std::string text = value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  return text.size() <= 60 ? text : text.substr(0, 60) + "...";
}

bool is_whole(const nlohmann::json& value) {
  return value.is_number_unsigned() ? value.get<uint64_t>() <= INT64_MAX
                                    : value.is_number_integer();
}

}  // namespace

bool ConfigFields::has(const std::string& key) const {
  const auto field = json_.find(key);
  return field != json_.end() && !field->is_null();
}

template <typename T>
void ConfigFields::read_as(const std::string& key, T& value, const char* kind, bool fits) const {
  if (!fits) {
    throw UsageError("{}: {} is {}, it must be {}", name_, key, shown(json_.at(key)), kind);
  }
  json_.at(key).get_to(value);
}

int64_t ConfigFields::whole(const std::string& key) const {
  if (!has(key)) {
    throw UsageError("{}: the field {} is missing{}", name_, key,
                     base::did_you_mean(key, keys_of(json_)));
  }
  int64_t value = 0;
  read(key, value);
  return value;
}

void ConfigFields::read(const std::string& key, int64_t& value) const {
  if (has(key)) {
    read_as(key, value, "a whole number", is_whole(json_.at(key)));
  }
}

void ConfigFields::read(const std::string& key, double& value) const {
  if (has(key)) {
    read_as(key, value, "a number", json_.at(key).is_number());
  }
}

void ConfigFields::read(const std::string& key, std::string& value) const {
  if (has(key)) {
    read_as(key, value, "a string", json_.at(key).is_string());
  }
}

void ConfigFields::read(const std::string& key, bool& value) const {
  if (has(key)) {
    read_as(key, value, "true or false", json_.at(key).is_boolean());
  }
}

void ConfigFields::read(const std::string& key, std::vector<int64_t>& value) const {
  if (has(key)) {
    const nlohmann::json& list = json_.at(key);
    read_as(key, value, "a list of whole numbers",
            list.is_array() && std::all_of(list.begin(), list.end(), is_whole));
  }
}

void ConfigFields::refuse_word(const std::string& key, const std::string& word,
                               const std::vector<std::string>& known) const {
  throw UsageError("{}: {} is {}; lockstep knows {}{}", name_, key, shown(word),
                   fmt::join(known, ", "), base::did_you_mean(word, known));
}

void ConfigFields::must_be(const std::string& key, const nlohmann::json& wanted) const {
  if (has(key) && json_.at(key) != wanted) {
    throw UsageError("{}: {} is {}; lockstep computes only {}", name_, key, shown(json_.at(key)),
                     wanted.dump());
  }
}

}  // namespace lockstep::models
