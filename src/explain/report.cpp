#include "explain/report.h"

#include <algorithm>

#include <fmt/format.h>

#include "explain/width.h"

namespace lockstep::explain {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kColumns = 88;
constexpr size_t kJsonIndent = 2;

std::string render_step(size_t number, const Step& step) {
  const std::string label = fmt::format("{}. ", number);
  const std::string hanging(label.size(), ' ');
  std::string text;
  for (const auto& line : wrap(step.sentence, kColumns - label.size())) {
    text += (text.empty() ? label : hanging) + line + "\n";
  }
  if (step.table) {
    text += "\n" + render_table(*step.table, label.size() + 1);
  }
  return text;
}

bool is_flat(const Json& value) {
  return std::none_of(value.begin(), value.end(),
                      [](const Json& item) { return item.is_structured(); });
}

void append_json(std::string& text, const Json& value, size_t indent) {
  if (!value.is_structured() || (value.is_array() && is_flat(value))) {
    text += value.dump();
    return;
  }
  const std::string margin(indent + kJsonIndent, ' ');
  text += value.is_object() ? "{" : "[";
  const char* separator = "\n";
  for (const auto& item : value.items()) {
    text += separator + margin;
    if (value.is_object()) {
      text += Json(item.key()).dump() + ": ";
    }
    append_json(text, item.value(), indent + kJsonIndent);
    separator = ",\n";
  }
  text += '\n';
  text.append(indent, ' ');
  text += value.is_object() ? '}' : ']';
}

}  // namespace

std::string render_text(const Report& report) {
  std::string text = report.title + "\n";
  for (size_t i = 0; i < report.steps.size(); ++i) {
    text += "\n" + render_step(i + 1, report.steps[i]);
  }
  return text;
}

std::string render_json(const Report& report) {
  std::string text;
  append_json(text, report.data, 0);
  return text + "\n";
}

}  // namespace lockstep::explain
