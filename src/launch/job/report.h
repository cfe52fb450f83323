#pragma once

// The report at the end of a job, and its exit code: the first failure comes first, everything else
// is one line.

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <sys/types.h>
#include <vector>

#include "launch/node/rank_end.h"

namespace lockstep::launch {

// What is known of a rank.
struct RankRecord {
  int rank = 0;
  int node = 0;
  int local_rank = 0;
  std::string host;            // empty: the only one
  pid_t pid = 0;               // as the host sees it; 0: it never started
  std::optional<RankEnd> end;  // empty when the job is over: its agent or guardian was killed
  int64_t stamp_ns = 0;        // when its end was noticed
  bool was_first = false;      // the ranks say that it gave up before the others

  bool failed() const { return end && !end->stopped && !end->status.ok(); }
};

// Why a job came to an end before its ranks did. At most one of signal, cannot_start and broken is
// set.
struct StopCause {
  int signal = 0;             // the signal that told this process to stop
  std::string cannot_start;   // the program cannot be executed: the sentence
  int cannot_start_code = 0;  // 126 or 127
  std::string broken;         // agent, guardian or set-up: the sentence
  int broken_code = 0;
  // How it came that stopped ranks were killed, whatever the cause.
  std::chrono::nanoseconds grace{};  // which the ranks had
  bool was_cut_short = false;        // they were killed before it was over, as the user asked
};

struct Report {
  std::string text;  // lines for standard error, each with its newline; empty if all went well
  int exit_code = 0;
};

// `name` ("lockstep run") begins each sentence.
Report make_report(const std::string& name, const std::vector<RankRecord>& ranks,
                   const StopCause& cause);

// "cannot start ./x: No such file or directory", with the likely reason where there is one.
std::string cannot_start_text(const std::string& program, int error);

}  // namespace lockstep::launch
