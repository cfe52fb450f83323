#pragma once

// JSON from files that may be hostile.

#include <string>

#include <nlohmann/json.hpp>

namespace lockstep::tokenizers {

using Json = nlohmann::json;

constexpr size_t kMaxVocabularyBytes = 64u << 20;

// Throws IoError if it cannot be read or is larger than kMaxVocabularyBytes, and FormatError, with
// the line, if it is no JSON in UTF-8, is nested deeper than 32 or has a key twice in an object.
Json read_json_file(const std::string& path);

// Fields of objects; FormatError begins with `place`, which is a file and perhaps a field in it.
// Without a fallback the field must be there.
std::string text_field(const Json& object, const char* name, const std::string& place);
std::string text_field(const Json& object, const char* name, const std::string& place,
                       const std::string& fallback);  // null counts as not there
bool bool_field(const Json& object, const char* name, const std::string& place, bool fallback);
int64_t number_field(const Json& object, const char* name, const std::string& place);

// The field `name`, or null if there is none.
const Json& field(const Json& object, const char* name);

}  // namespace lockstep::tokenizers
