#pragma once

// A lesson shows one idea of data-parallel training on live ranks. It runs on every rank of the
// group; what it reports is what the ranks computed and told each other, never a number written
// down beforehand.

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <lockstep/comm/group.h>

#include "explain/average_input.h"
#include "explain/phrases.h"
#include "explain/report.h"

namespace lockstep::explain {

inline constexpr int kLessonRanks = 4;  // of the lessons with built-in numbers

struct LessonOptions {
  Language language = Language::English;
  std::string model;     // for the lesson `pretrained` only: a location; empty: one that it makes
  AverageInput average;  // for the lesson `average` only
};

struct Lesson {
  std::string_view name;
  Phrases phrases;  // has at least "title" and "summary"

  // Collective: every rank of the group calls it with the same options and gets a report. Throws
  // UsageError, on every rank, if the group has not the size that the lesson needs.
  Report (*run)(Group& group, const LessonOptions& options);
};

// Returns them in the order in which a student should meet them.
std::span<const Lesson> lessons();

// Throws UsageError with the nearest name if there is no such lesson.
const Lesson& find_lesson(const std::string& name);

// One line per lesson: its name and what it shows.
std::string list_lessons(Language language);

Report run_average(Group& group, const LessonOptions& options);
Report run_features(Group& group, const LessonOptions& options);
Report run_sync(Group& group, const LessonOptions& options);
Report run_split(Group& group, const LessonOptions& options);
Report run_replicate(Group& group, const LessonOptions& options);
Report run_scratch(Group& group, const LessonOptions& options);
Report run_pretrained(Group& group, const LessonOptions& options);

Phrases average_phrases();
Phrases features_phrases();
Phrases sync_phrases();
Phrases split_phrases();
Phrases replicate_phrases();
Phrases scratch_phrases();
Phrases pretrained_phrases();

}  // namespace lockstep::explain
