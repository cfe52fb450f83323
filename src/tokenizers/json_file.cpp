#include "tokenizers/json_file.h"

#include <lockstep/base/error.h>

#include "base/strict_json.h"
#include "base/unique_fd.h"
#include "tokenizers/vocabulary.h"

namespace lockstep::tokenizers {

namespace {

[[noreturn]] void refuse(const std::string& place, const char* name, const Json& found,
                         const char* wanted) {
  if (found.is_null()) {
    throw FormatError("{}: \"{}\" is missing, {} is needed", place, name, wanted);
  }
  throw FormatError(
      "{}: \"{}\" is {}, {} is needed", place, name,
      found.is_structured() ? std::string(found.type_name()) : in_quotes(found.dump()), wanted);
}

}  // namespace

Json read_json_file(const std::string& path) {
  return base::parse_strict_json(path, base::read_file(path, kMaxVocabularyBytes));
}

const Json& field(const Json& object, const char* name) {
  static const Json nothing;
  if (!object.is_object()) {
    return nothing;
  }
  const auto found = object.find(name);
  return found == object.end() ? nothing : *found;
}

std::string text_field(const Json& object, const char* name, const std::string& place) {
  const Json& value = field(object, name);
  if (!value.is_string()) {
    refuse(place, name, value, "text");
  }
  return value.get<std::string>();
}

std::string text_field(const Json& object, const char* name, const std::string& place,
                       const std::string& fallback) {
  return field(object, name).is_null() ? fallback : text_field(object, name, place);
}

bool bool_field(const Json& object, const char* name, const std::string& place, bool fallback) {
  const Json& value = field(object, name);
  if (value.is_null()) {
    return fallback;
  }
  if (!value.is_boolean()) {
    refuse(place, name, value, "true or false");
  }
  return value.get<bool>();
}

int64_t number_field(const Json& object, const char* name, const std::string& place) {
  const Json& value = field(object, name);
  if (!value.is_number_integer() ||
      (value.is_number_unsigned() && value.get<uint64_t>() > INT64_MAX)) {
    refuse(place, name, value, "a whole number");
  }
  return value.get<int64_t>();
}

}  // namespace lockstep::tokenizers
