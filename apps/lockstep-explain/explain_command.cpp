#include "explain_command.h"

#include <chrono>
#include <cstdio>
#include <optional>
#include <string>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>
#include <lockstep/comm/init.h>

#include "base/env.h"
#include "comm/start/launch_env.h"
#include "explain/lesson.h"

namespace lockstep {
namespace {

// A lesson takes a second: who waits longer waits for a rank that is gone.
constexpr InitOptions kPatience{.timeout = std::chrono::seconds(60),
                                .start_timeout = std::chrono::seconds(60)};

constexpr const char* kExplainDescription =
    "Shows the ideas of data-parallel training, step by step, on live ranks: what is printed is "
    "what the ranks computed.";

struct ExplainRequest {
  std::string lesson;
  explain::LessonOptions options;
  bool json = false;
  std::string text;  // not empty: print this, there is nothing to run
};

explain::Language default_language() {
  const base::Env env;
  for (const char* name : {"LC_ALL", "LC_MESSAGES", "LANG"}) {
    if (const auto locale = env.text(name)) {
      return explain::language_of_locale(*locale);
    }
  }
  return explain::Language::English;
}

explain::Language parse_language(const std::string& name) {
  if (name.empty()) {
    return default_language();
  }
  if (name != "en" && name != "ko") {
    throw UsageError("explain: --lang {} is not known; the lessons are told in en and ko", name);
  }
  return name == "ko" ? explain::Language::Korean : explain::Language::English;
}

std::string json_list(explain::Language language) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const auto& lesson : explain::lessons()) {
    const std::string summary = explain::Speaker(lesson.phrases, language)("summary");
    list.push_back({{"name", lesson.name}, {"summary", summary}});
  }
  return list.dump(2) + "\n";
}

std::string footer() {
  return "Lessons:\n" + explain::list_lessons(default_language()) +
         "\nExamples:\n"
         "  lockstep explain average\n"
         "  lockstep explain average --lang ko\n"
         "  lockstep explain average --gradients '[[1, 2], [3, 4], [5, 6]]' --weights '[0, 0]'\n"
         "  lockstep explain pretrained --model /models/bert-base-uncased\n"
         "  lockstep explain sync --json\n";
}

ExplainRequest parse_explain_request(int argc, char** argv) {
  ExplainRequest request;
  std::string language;
  explain::AverageFlags average;
  CLI::App app(kExplainDescription, "lockstep explain");
  app.add_option("LESSON", request.lesson, "Name of a lesson; `list` or nothing lists them");
  app.add_option("--lang", language, "en or ko; default: that of LC_ALL, LC_MESSAGES or LANG");
  app.add_flag("--json", request.json, "Print the facts as JSON and nothing else");
  app.add_option("--gradients", average.gradients,
                 "average: your own, as JSON, one row per rank; as many ranks are started");
  app.add_option("--weights", average.weights,
                 "average: the weights to start from, as JSON; default: 0.5, 0.3, 0.2 for rows "
                 "of three, 0 for others");
  app.add_option("--lr", average.lr, "average: the learning rate; default: 1");
  app.add_option("--model", request.options.model,
                 "pretrained: a folder or file of weights, or s3://...; default: a small BERT that "
                 "the lesson makes");
  app.add_flag("--descend", average.descend,
               "average: subtract lr x average, as for the gradient of a loss; default: add it");
  app.footer(footer());
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    request.text = app.help();
    return request;
  } catch (const CLI::ParseError& error) {
    throw UsageError("explain: {} (see `lockstep explain --help`)", error.what());
  }
  request.options.language = parse_language(language);
  if (request.lesson.empty() || request.lesson == "list") {
    request.text = request.json ? json_list(request.options.language)
                                : explain::list_lessons(request.options.language);
    return request;
  }
  const explain::Lesson& lesson = explain::find_lesson(request.lesson);
  request.options.average = explain::parse_average_input(average);
  if (lesson.name != "average" && !request.options.average.built_in) {
    throw UsageError(
        "explain {}: --gradients, --weights, --lr and --descend belong to `lockstep explain "
        "average`",
        lesson.name);
  }
  if (lesson.name != "pretrained" && !request.options.model.empty()) {
    throw UsageError("explain {}: --model belongs to `lockstep explain pretrained`", lesson.name);
  }
  return request;
}

// Says what is wrong on rank 0 and ends on every rank. The others stay until it is said: the
// launcher stops all ranks when the first of them fails.
int refuse(Group group, const Error& error) {
  if (group.rank() == 0) {
    fmt::print(stderr, "lockstep {}\n", error.what());
    std::fflush(stderr);
  }
  try {
    group.barrier();
  } catch (const CommError&) {
    log::debug("explain", "a rank ended before all knew of the mistake");
  }
  return 2;
}

int run_lesson(const ExplainRequest& request, Group group) {
  try {
    const explain::Report report = explain::find_lesson(request.lesson).run(group, request.options);
    if (group.rank() == 0) {
      fmt::print("{}", request.json ? explain::render_json(report) : explain::render_text(report));
    }
    return 0;
  } catch (const UsageError& error) {
    return refuse(group, error);
  } catch (const IoError& error) {  // of --model
    return refuse(group, error);
  } catch (const FormatError& error) {
    return refuse(group, error);
  }
}

}  // namespace

int explain_command(int argc, char** argv) {
  const base::Env env;
  if (!env.has("LOCKSTEP_LOG_LEVEL")) {
    log::set_level(log::Level::Warn);  // a student reads the lesson, not how the ranks met
  }
  const comm::LaunchEnv launch = comm::read_launch_env(env);
  std::optional<ExplainRequest> request;
  try {
    request = parse_explain_request(argc, argv);
  } catch (const UsageError& error) {
    return refuse(init(kPatience), error);
  }
  if (!request->text.empty()) {
    fmt::print("{}", launch.rank == 0 ? request->text : "");
    return 0;
  }
  if (launch.source == comm::LaunchEnv{}.source) {
    fmt::print(
        stderr,
        "lockstep explain: a lesson needs several ranks; start them with `lockstep explain {}`\n",
        request->lesson);
    return 2;
  }
  return run_lesson(*request, init(kPatience));
}

}  // namespace lockstep
