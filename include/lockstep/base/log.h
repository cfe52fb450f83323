#pragma once

// The log of the library. One event is one line, written to standard error unless the program sets
// another sink.
//
// Example:
//   lockstep::log::info("ddp", "{} buckets, largest {} MiB", num_buckets, largest_mib);
//
// writes a line with the time, the rank, the level and the area:
//
//   12:04:31.207 r3 INFO ddp: 6 buckets, largest 25.0 MiB
//
// Two environment variables choose what is written: LOCKSTEP_LOG_LEVEL is error, warn, info (the
// default), debug or off, and LOCKSTEP_LOG_RANKS is a list such as 0,3 (the default is all ranks).
// A bad value of either is reported once in the log and otherwise ignored.
//
// Threads: every function may be called from any thread.

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace lockstep::log {

enum class Level { Debug, Info, Warn, Error, Off };

// The lowest level that is written. set_level() overrides LOCKSTEP_LOG_LEVEL.
Level level();
void set_level(Level level);

// Turns "warn" into Level::Warn. Returns nothing for an unknown name.
std::optional<Level> parse_level(std::string_view name);

// Sets the rank that each line shows ("r3"). init() calls it. Lines show "r-" while there is none.
void set_rank(std::optional<int> rank);

// Sends every line ("r3 INFO ddp: ...", without the time and the newline) to `sink` instead of
// standard error; an empty function restores standard error. The sink is called by the thread that
// logs, so several threads may be inside it at once. It must not throw.
void set_sink(std::function<void(Level, std::string_view line)> sink);

// Whether a line of this level would be written. Ask it before computing something costly to log.
bool enabled(Level level);

// Writes one line at any level, without asking enabled(). Prefer the four functions below.
void write(Level level, std::string_view area, std::string_view message);

// Each of these writes one line at its level. The text is formatted only if the level is enabled.
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
