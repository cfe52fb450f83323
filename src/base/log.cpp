#include <atomic>
#include <mutex>
#include <set>
#include <sstream>

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <lockstep/base/log.h>

#include "base/env.h"

namespace lockstep::log {
namespace {

using Sink = std::function<void(Level, std::string_view)>;

const char* level_name(Level level) {
  switch (level) {
    case Level::Debug:
      return "DEBUG";
    case Level::Info:
      return "INFO";
    case Level::Warn:
      return "WARN";
    case Level::Error:
      return "ERROR";
    case Level::Off:
      break;
  }
  return "OFF";
}

// Everything the log knows; one per process.
class State {
 public:
  // Leaked on purpose: destructors of other statics may still log.
  static State& instance() {
    static State* state = new State;
    return *state;
  }

  std::atomic<Level> level{Level::Info};

  bool rank_is_shown() {
    const std::lock_guard lock(mutex_);
    return ranks_.empty() || !rank_ || ranks_.count(*rank_) != 0;
  }

  void set_rank(std::optional<int> rank) {
    const std::lock_guard lock(mutex_);
    rank_ = rank;
  }

  void set_sink(Sink sink) {
    const std::lock_guard lock(mutex_);
    sink_ = std::move(sink);
  }

  void write(Level line_level, std::string_view area, std::string_view message) {
    std::string line;
    Sink sink;
    {
      const std::lock_guard lock(mutex_);
      const std::string rank = rank_ ? fmt::format("r{}", *rank_) : "r-";
      line = fmt::format("{} {} {}: {}", rank, level_name(line_level), area, message);
      sink = sink_;
    }
    // spdlog stamps and writes the line in one piece; a foreign sink gets the same text without it.
    if (sink) {
      sink(line_level, line);
    } else {
      logger_->log(spdlog::level::info, "{}", line);
    }
  }

 private:
  State() {
    logger_ = std::make_shared<spdlog::logger>("lockstep",
                                               std::make_shared<spdlog::sinks::stderr_sink_mt>());
    logger_->set_pattern("%H:%M:%S.%e %v");
    const base::Env env;
    if (const auto name = env.text("LOCKSTEP_LOG_LEVEL")) {
      if (const auto parsed = parse_level(*name)) {
        level = *parsed;
      } else {
        write(Level::Warn, "log",
              fmt::format("LOCKSTEP_LOG_LEVEL={} is ignored; use error, warn, info, debug or off",
                          *name));
      }
    }
    if (const auto list = env.text("LOCKSTEP_LOG_RANKS")) {
      read_ranks(*list);
    }
  }

  void read_ranks(const std::string& list) {
    std::istringstream items(list);
    for (std::string item; std::getline(items, item, ',');) {
      const auto rank = base::parse_integer(item, 0, 1 << 20);
      if (!rank) {
        write(Level::Warn, "log",
              fmt::format("LOCKSTEP_LOG_RANKS={} is ignored; use a list such as 0,3", list));
        ranks_.clear();
        return;
      }
      ranks_.insert(static_cast<int>(*rank));
    }
  }

  std::mutex mutex_;
  std::optional<int> rank_;
  std::set<int> ranks_;  // empty: all
  Sink sink_;
  std::shared_ptr<spdlog::logger> logger_;
};

}  // namespace

Level level() {
  return State::instance().level;
}
void set_level(Level level) {
  State::instance().level = level;
}

std::optional<Level> parse_level(std::string_view name) {
  if (name == "debug") return Level::Debug;
  if (name == "info") return Level::Info;
  if (name == "warn") return Level::Warn;
  if (name == "error") return Level::Error;
  if (name == "off") return Level::Off;
  return std::nullopt;
}

void set_rank(std::optional<int> rank) {
  State::instance().set_rank(rank);
}
void set_sink(Sink sink) {
  State::instance().set_sink(std::move(sink));
}

bool enabled(Level level) {
  State& state = State::instance();
  return level != Level::Off && level >= state.level && state.rank_is_shown();
}

void write(Level level, std::string_view area, std::string_view message) {
  State::instance().write(level, area, message);
}

}  // namespace lockstep::log
