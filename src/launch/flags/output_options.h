#pragma once

// What becomes of the ranks' output.

#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <sys/types.h>
#include <vector>

namespace lockstep::launch {

// Which of a rank's two streams: bit 0 is standard output, bit 1 standard error.
using StreamSet = unsigned;
inline constexpr StreamSet kNoStream = 0;
inline constexpr StreamSet kBothStreams = 3;

// Streams of all ranks of a node, or of some.
struct StreamChoice {
  StreamSet all = kNoStream;
  std::map<int, StreamSet> of_rank;  // by local rank; if there is one, the others have none

  StreamSet of(int local_rank) const;
  bool any() const { return all != kNoStream || !of_rank.empty(); }

  // "3", or by local rank "0:3,12:1". Throws UsageError that names `flag`.
  static StreamChoice parse(const std::string& text, const std::string& flag);
};

struct OutputOptions {
  std::string log_dir;          // empty: log files only if redirects or tee ask for them
  mode_t folder_mode = 0700;    // of the folders that are made for log files
  StreamChoice redirects;       // to a log file instead of the console
  StreamChoice tee;             // to a log file and to the console
  std::vector<int> shown;       // local ranks that the console shows; empty: all
  bool prefix = true;           // "r2: " before each line of rank 2
  std::string prefix_template;  // instead of it: ${rank} and ${local_rank} are replaced
  // Lines that hold one of these are also written, with prefix, to filtered_stdout_n<node>.log and
  // filtered_stderr_n<node>.log beside the folders of the ranks; needs log_dir.
  std::vector<std::string> stdout_filters;
  std::vector<std::string> stderr_filters;
};

struct StreamRoute {
  bool to_console = true;
  bool to_file = false;
};

// Where a stream (0: standard output, 1: standard error) of a rank goes. `log_dir` alone means both
// streams of all ranks to both places; with `redirects` or `tee` the files are those that they
// name.
StreamRoute stream_route(const OutputOptions& options, int local_rank, size_t stream);

// Makes a folder for the log files that are wanted though there is no log_dir, and says in the log
// which: under $TMPDIR or, if that is not set, /tmp, /var/tmp or $XDG_RUNTIME_DIR. If it cannot,
// `tee` is given up, with a warning; for `redirects`, whose output would be lost, throws IoError.
void choose_log_dir(OutputOptions& options);

// `prefix_template` for one rank.
std::string filled_prefix(std::string text, int rank, int local_rank);

bool holds_any(std::string_view line, const std::vector<std::string>& filters);

// A line that holds one JSON object and nothing else. Those of rank 0's standard output are data
// for whoever reads ours (`lockstep train --json`): they pass as they are, without a prefix.
bool is_json_object(std::string_view line);

// `text` with every `from` replaced by `to`.
std::string replaced(std::string text, std::string_view from, std::string_view to);

}  // namespace lockstep::launch
