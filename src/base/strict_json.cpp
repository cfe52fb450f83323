#include "base/strict_json.h"

#include <algorithm>
#include <unordered_set>
#include <vector>

#include <nlohmann/json.hpp>

#include <lockstep/base/error.h>

#include "base/quoted.h"

namespace lockstep::base {

using Json = nlohmann::json;

namespace {

constexpr int kMaxDepth = 32;

}  // namespace

Json parse_strict_json(const std::string& file, const std::string& text) {
  std::vector<std::unordered_set<std::string>> keys;
  const auto watch = [&](int depth, Json::parse_event_t event, Json& value) {
    if (depth > kMaxDepth) {
      throw FormatError("{}: it is nested deeper than {}", file, kMaxDepth);
    }
    if (event == Json::parse_event_t::object_start) {
      keys.emplace_back();
    } else if (event == Json::parse_event_t::object_end) {
      keys.pop_back();
    } else if (event == Json::parse_event_t::key &&
               !keys.back().insert(value.get_ref<const std::string&>()).second) {
      throw FormatError("{}: it names {} twice; which of them is meant?", file,
                        shown(value.get_ref<const std::string&>()));
    }
    return true;
  };
  try {
    return Json::parse(text, watch);
  } catch (const Json::parse_error& error) {
    const size_t offset = std::min(error.byte, text.size());
    const auto line =
        std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(offset), '\n');
    throw FormatError("{}: it is not JSON in UTF-8 at offset {} (line {})", file, offset, line + 1);
  } catch (const Json::exception& /*out_of_range*/) {
    throw FormatError("{}: it has a number beyond all limits", file);
  }
}

}  // namespace lockstep::base
