#include "explain/lesson.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <lockstep/base/error.h>

#include "base/text/text.h"
#include "explain/table.h"
#include "explain/width.h"

namespace lockstep::explain {

std::span<const Lesson> lessons() {
  static const Lesson kLessons[] = {
      {.name = "replicate", .phrases = replicate_phrases(), .run = run_replicate},
      {.name = "scratch", .phrases = scratch_phrases(), .run = run_scratch},
      {.name = "pretrained", .phrases = pretrained_phrases(), .run = run_pretrained},
      {.name = "split", .phrases = split_phrases(), .run = run_split},
      {.name = "average", .phrases = average_phrases(), .run = run_average},
      {.name = "features", .phrases = features_phrases(), .run = run_features},
      {.name = "sync", .phrases = sync_phrases(), .run = run_sync},
  };
  return kLessons;
}

const Lesson& find_lesson(const std::string& name) {
  std::vector<std::string> names;
  for (const auto& lesson : lessons()) {
    if (lesson.name == name) {
      return lesson;
    }
    names.emplace_back(lesson.name);
  }
  const std::string near = base::nearest(name, names);
  const std::string hint = near.empty() ? "" : fmt::format("did you mean `{}`? ", near);
  throw UsageError("explain: there is no lesson \"{}\"; {}the lessons are {}", name, hint,
                   fmt::join(names, ", "));
}

std::string list_lessons(Language language) {
  size_t width = 0;
  for (const auto& lesson : lessons()) {
    width = std::max(width, display_width(lesson.name));
  }
  std::string text;
  for (const auto& lesson : lessons()) {
    text += fmt::format("  {:{}}  {}\n", lesson.name, width,
                        Speaker(lesson.phrases, language)("summary"));
  }
  return text;
}

}  // namespace lockstep::explain
