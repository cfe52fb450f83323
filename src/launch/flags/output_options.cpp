#include "launch/flags/output_options.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <sstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

#include "base/env.h"
#include "base/unique_fd.h"
#include "launch/launch.h"

namespace lockstep::launch {

StreamSet StreamChoice::of(int local_rank) const {
  const auto own = of_rank.find(local_rank);
  return own != of_rank.end() ? own->second : all;
}

StreamChoice StreamChoice::parse(const std::string& text, const std::string& flag) {
  const auto bad = [&] {
    return UsageError(
        "{} {} is neither 0 (none), 1 (standard output), 2 (standard error) or 3 (both) nor such "
        "numbers by local rank, as in 0:3,1:1",
        flag, text);
  };
  StreamChoice choice;
  if (const auto all = base::parse_integer(text, kNoStream, kBothStreams)) {
    choice.all = static_cast<StreamSet>(*all);
    return choice;
  }
  std::istringstream items(text);
  for (std::string item; std::getline(items, item, ',');) {
    const size_t colon = item.find(':');
    if (colon == std::string::npos) {
      throw bad();
    }
    const auto rank = base::parse_integer(item.substr(0, colon), 0, kMaxProcsPerNode - 1);
    const auto streams = base::parse_integer(item.substr(colon + 1), kNoStream, kBothStreams);
    if (!rank || !streams ||
        !choice.of_rank.emplace(static_cast<int>(*rank), static_cast<StreamSet>(*streams)).second) {
      throw bad();
    }
  }
  if (choice.of_rank.empty() || text.ends_with(',')) {
    throw bad();
  }
  return choice;
}

StreamRoute stream_route(const OutputOptions& options, int local_rank, size_t stream) {
  const StreamSet bit = 1u << stream;
  const bool tees = (options.tee.of(local_rank) & bit) != 0;
  const bool redirects = (options.redirects.of(local_rank) & bit) != 0;
  const bool all = !options.log_dir.empty() && !options.redirects.any() && !options.tee.any();
  const bool shown = options.shown.empty() || std::find(options.shown.begin(), options.shown.end(),
                                                        local_rank) != options.shown.end();
  return {.to_console = shown && (tees || !redirects), .to_file = all || tees || redirects};
}

namespace {

// A new folder of our own in the first of these that takes one; empty, and why, if none does.
std::string make_own_folder(const std::vector<std::string>& places, std::string& why) {
  for (const std::string& place : places) {
    std::string path = place + "/lockstep_logs_XXXXXX";
    if (::mkdtemp(path.data()) != nullptr) {
      return path;
    }
    why += fmt::format("{}{}: {}", why.empty() ? "" : ", ", place, base::errno_text(errno));
  }
  return "";
}

}  // namespace

void choose_log_dir(OutputOptions& options) {
  if (!options.log_dir.empty() || (!options.redirects.any() && !options.tee.any())) {
    return;
  }
  const base::Env env;
  std::vector<std::string> places{env.text("TMPDIR").value_or("/tmp")};
  if (!env.text("TMPDIR")) {
    places.push_back("/var/tmp");
    if (const auto own = env.text("XDG_RUNTIME_DIR")) {
      places.push_back(*own);
    }
  }
  std::string why;
  options.log_dir = make_own_folder(places, why);
  if (!options.log_dir.empty()) {
    log::info("launch", "log files are in {}; --log-dir chooses another folder", options.log_dir);
  } else if (options.redirects.any()) {
    throw IoError("cannot make a folder for the log files ({}); --log-dir chooses another folder",
                  why);
  } else {
    // The console shows everything: that is no reason not to run.
    log::warn(
        "launch",
        "--tee: cannot make a folder for the log files ({}); going on without them; --log-dir "
        "chooses another folder",
        why);
    options.tee = {};
  }
}

std::string filled_prefix(std::string text, int rank, int local_rank) {
  text = replaced(std::move(text), "${rank}", std::to_string(rank));
  return replaced(std::move(text), "${local_rank}", std::to_string(local_rank));
}

bool holds_any(std::string_view line, const std::vector<std::string>& filters) {
  return std::any_of(filters.begin(), filters.end(), [&](const std::string& filter) {
    return line.find(filter) != std::string_view::npos;
  });
}

bool is_json_object(std::string_view line) {
  while (line.ends_with('\n') || line.ends_with('\r')) {
    line.remove_suffix(1);
  }
  return line.starts_with('{') && line.ends_with('}') && nlohmann::json::accept(line);
}

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
  return text;
}

}  // namespace lockstep::launch
