#include "data/json_file.h"

#include <algorithm>
#include <unordered_set>
#include <vector>

#include <lockstep/base/error.h>

#include "base/unique_fd.h"
#include "data/vocabulary.h"

namespace lockstep {

namespace {

constexpr int kMaxDepth = 32;

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
  const std::string text = read_file(path, kMaxVocabularyBytes);
  std::vector<std::unordered_set<std::string>> keys;
  const auto watch = [&](int depth, Json::parse_event_t event, Json& value) {
    if (depth > kMaxDepth) {
      throw FormatError("{}: it is nested deeper than {}", path, kMaxDepth);
    }
    if (event == Json::parse_event_t::object_start) {
      keys.emplace_back();
    } else if (event == Json::parse_event_t::object_end) {
      keys.pop_back();
    } else if (event == Json::parse_event_t::key &&
               !keys.back().insert(value.get_ref<const std::string&>()).second) {
      throw FormatError("{}: it names {} twice; which of them is meant?", path,
                        in_quotes(value.get_ref<const std::string&>()));
    }
    return true;
  };
  try {
    return Json::parse(text, watch);
  } catch (const Json::parse_error& error) {
    const size_t offset = std::min(error.byte, text.size());
    const auto line =
        std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(offset), '\n');
    throw FormatError("{}:{}: it is not JSON in UTF-8 at offset {}", path, line + 1, offset);
  } catch (const Json::out_of_range& /*error*/) {
    throw FormatError("{}: it has a number that is beyond all limits", path);
  }
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

}  // namespace lockstep
