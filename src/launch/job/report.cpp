#include "launch/job/report.h"

#include <algorithm>
#include <cerrno>
#include <signal.h>
#include <unistd.h>

#include <fmt/format.h>

#include "base/deadline.h"
#include "base/unique_fd.h"

namespace lockstep::launch {

namespace {

// The first in the ranks' own time, if they know; else the first that ended.
const RankRecord* first_failure(const std::vector<RankRecord>& ranks) {
  const RankRecord* first = nullptr;
  for (const RankRecord& rank : ranks) {
    if (rank.failed() && rank.was_first) {
      return &rank;
    }
    if (rank.failed() && (first == nullptr || rank.stamp_ns < first->stamp_ns)) {
      first = &rank;
    }
  }
  return first;
}

std::string indent(const std::string& lines) {
  std::string text;
  for (size_t begin = 0; begin < lines.size();) {
    const size_t end = std::min(lines.find('\n', begin), lines.size());
    text += fmt::format("    {}\n", lines.substr(begin, end - begin));
    begin = end + 1;
  }
  return text;
}

std::string failure_text(const std::string& name, const RankRecord& rank) {
  const RankEnd& end = *rank.end;
  std::string text = fmt::format("{}: rank {} ({}node {}, local rank {}, pid {}) failed: {}", name,
                                 rank.rank, rank.host.empty() ? "" : rank.host + ", ", rank.node,
                                 rank.local_rank, rank.pid, end.status.text());
  if (end.status.signal == SIGKILL) {
    text += "; lockstep did not send it: out of memory? (see dmesg)";
  }
  text += "\n";
  if (!end.error.empty()) {
    text += "  its error:\n" + indent(end.error);
  }
  if (!end.last_lines.empty()) {
    text += "  its last output:\n" + indent(end.last_lines);
  }
  if (!end.log_folder.empty()) {
    text += fmt::format("  {}: {}\n", end.is_log_whole ? "all of its output" : "its log files",
                        end.log_folder);
  }
  return text;
}

constexpr int kMaxNamed = 4;

// " (rank 1 killed after the grace of 10 s; --stop-grace gives more)"
std::string killed_text(const std::vector<int>& killed, const StopCause& cause) {
  if (killed.empty()) {
    return "";
  }
  const size_t num_named = std::min<size_t>(killed.size(), kMaxNamed);
  const std::vector<int> named(killed.begin(), killed.begin() + static_cast<long>(num_named));
  const std::string who =
      fmt::format("rank{} {}{}", killed.size() == 1 ? "" : "s", fmt::join(named, ", "),
                  killed.size() > num_named ? ", ..." : "");
  return cause.was_cut_short
             ? fmt::format(" ({} killed before the grace of {} was over, as it was asked to)", who,
                           base::to_text(cause.grace))
             : fmt::format(" ({} killed after the grace of {}; --stop-grace gives more)", who,
                           base::to_text(cause.grace));
}

// "3 other ranks: 1 exited with 0, 1 failed too (rank 3: exit code 1), 1 stopped by lockstep"
std::string others_text(const std::vector<RankRecord>& ranks, const RankRecord* failure,
                        const StopCause& cause) {
  int num_ok = 0, num_failed = 0, num_stopped = 0, num_lost = 0;
  std::string failures;
  std::vector<int> killed;
  for (const RankRecord& rank : ranks) {
    if (&rank == failure) {
      continue;
    }
    if (!rank.end) {
      ++num_lost;
    } else if (rank.end->status.ok()) {
      ++num_ok;
    } else if (rank.end->stopped) {
      ++num_stopped;
      if (rank.end->status.signal == SIGKILL) {
        killed.push_back(rank.rank);
      }
    } else {
      if (++num_failed <= kMaxNamed) {
        failures += fmt::format("{}rank {}: {}", failures.empty() ? "" : "; ", rank.rank,
                                rank.end->status.text());
      }
    }
  }
  const int total = num_ok + num_failed + num_stopped + num_lost;
  if (total == 0) {
    return "";
  }
  std::string parts;
  const auto add = [&parts](int count, const std::string& what) {
    if (count > 0) {
      parts += fmt::format("{}{} {}", parts.empty() ? "" : ", ", count, what);
    }
  };
  add(num_ok, "exited with 0");
  add(num_failed,
      fmt::format("failed too ({}{})", failures, num_failed > kMaxNamed ? "; ..." : ""));
  add(num_stopped, "stopped by lockstep" + killed_text(killed, cause));
  add(num_lost, "killed without a report");
  return fmt::format("  {}{} rank{}: {}\n", total, failure != nullptr ? " other" : "",
                     total == 1 ? "" : "s", parts);
}

}  // namespace

Report make_report(const std::string& name, const std::vector<RankRecord>& ranks,
                   const StopCause& cause) {
  if (!cause.cannot_start.empty()) {
    return {fmt::format("{}: {}\n", name, cause.cannot_start), cause.cannot_start_code};
  }
  if (!cause.broken.empty()) {
    const bool has_begun = std::any_of(ranks.begin(), ranks.end(),
                                       [](const RankRecord& rank) { return rank.pid != 0; });
    return {fmt::format("{}: {}\n", name, cause.broken) +
                (has_begun ? others_text(ranks, nullptr, cause) : ""),
            cause.broken_code};
  }
  if (cause.signal != 0) {
    return {fmt::format("{}: stopped by {}\n", name, base::signal_name(cause.signal)) +
                others_text(ranks, nullptr, cause),
            128 + cause.signal};
  }
  const RankRecord* failure = first_failure(ranks);
  if (failure == nullptr) {
    return {};
  }
  return {failure_text(name, *failure) + others_text(ranks, failure, cause),
          failure->end->status.shell_code()};
}

std::string cannot_start_text(const std::string& program, int error) {
  std::string text = fmt::format("cannot start {}: {}", program, base::errno_text(error));
  const bool is_path = program.find('/') != std::string::npos;
  if (error == ENOENT && is_path && ::access(program.c_str(), F_OK) == 0) {
    text += " (the file exists: the interpreter that it names is missing)";
  } else if (error == ENOENT && !is_path) {
    text += " (not in PATH; a program in this folder is ./" + program + ")";
  } else if (error == EACCES && is_path) {
    text += " (is it executable? chmod +x " + program + ")";
  }
  return text;
}

}  // namespace lockstep::launch
