#pragma once

// The log: one event, one line, on standard error unless the program gives another sink.
//
//   log::info("ddp", "{} buckets, largest {} MiB", n, mib);
//   12:04:31.207 r3 INFO ddp: 6 buckets, largest 25.0 MiB
//
// LOCKSTEP_LOG_LEVEL=error|warn|info|debug|off (default info) and LOCKSTEP_LOG_RANKS=0,3 (default:
// all) choose what is written; a bad value of either is reported once, in the log, and ignored.
// Threads: every function may be called from any thread.

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace lockstep::log {

enum class Level { Debug, Info, Warn, Error, Off };

// The lowest level that is written. Setting it overrides LOCKSTEP_LOG_LEVEL.
Level level();
void set_level(Level level);

// "warn" -> Level::Warn; nothing for an unknown name.
std::optional<Level> parse_level(std::string_view name);

// The rank shown in each line ("r3"); init() sets it. Before that, or with nothing, "r-" is shown.
void set_rank(std::optional<int> rank);

// Sends every line ("r3 INFO ddp: ...", without time and newline) to `sink` instead of standard
// error; an empty function goes back to standard error.
void set_sink(std::function<void(Level, std::string_view line)> sink);

// True if a line of this level would be written: ask before computing something costly to log.
bool enabled(Level level);

// Writes one line. Prefer the four functions below.
void write(Level level, std::string_view area, std::string_view message);

template <typename... Args>
void debug(std::string_view area, fmt::format_string<Args...> format, Args&&... args) {
  if (enabled(Level::Debug)) {
    write(Level::Debug, area, fmt::format(format, std::forward<Args>(args)...));
  }
}

template <typename... Args>
void info(std::string_view area, fmt::format_string<Args...> format, Args&&... args) {
  if (enabled(Level::Info)) {
    write(Level::Info, area, fmt::format(format, std::forward<Args>(args)...));
  }
}

template <typename... Args>
void warn(std::string_view area, fmt::format_string<Args...> format, Args&&... args) {
  if (enabled(Level::Warn)) {
    write(Level::Warn, area, fmt::format(format, std::forward<Args>(args)...));
  }
}

template <typename... Args>
void error(std::string_view area, fmt::format_string<Args...> format, Args&&... args) {
  if (enabled(Level::Error)) {
    write(Level::Error, area, fmt::format(format, std::forward<Args>(args)...));
  }
}

}  // namespace lockstep::log
