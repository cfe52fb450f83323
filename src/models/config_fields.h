#pragma once

// The fields of a config.json, read one by one; what is wrong with one is a UsageError that names
// the file, the field and the way out.

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace lockstep::models {

class ConfigFields {
 public:
  // `json` is an object that outlives this. `name` is for messages.
  ConfigFields(const nlohmann::json& json, std::string name)
      : json_(json), name_(std::move(name)) {}

  const std::string& name() const { return name_; }
  bool has(const std::string& key) const;  // null counts as absent

  int64_t whole(const std::string& key) const;  // must be there

  // These keep `value` where the field is absent.
  void read(const std::string& key, int64_t& value) const;
  void read(const std::string& key, double& value) const;
  void read(const std::string& key, std::string& value) const;
  void read(const std::string& key, bool& value) const;
  void read(const std::string& key, std::vector<int64_t>& value) const;

  // "config.json: hidden_act is "swish"; lockstep knows gelu, relu" for a word that is not among
  // `known`, with the nearest.
  [[noreturn]] void refuse_word(const std::string& key, const std::string& word,
                                const std::vector<std::string>& known) const;

  // Refuses any other value than the one that lockstep can compute; absent is `wanted`.
  void must_be(const std::string& key, const nlohmann::json& wanted) const;

  const nlohmann::json& json() const { return json_; }

 private:
  template <typename T>
  void read_as(const std::string& key, T& value, const char* kind, bool fits) const;

  const nlohmann::json& json_;
  std::string name_;
};

}  // namespace lockstep::models
