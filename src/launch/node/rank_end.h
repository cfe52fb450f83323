#pragma once

// How a rank ended. The guardian notices it, the agent adds what the rank left behind, the leader
// adds where the log files are, and the head keeps it for the report. When it was noticed is not
// here: a clock's reading means nothing on another host, so each carrier has its own form of it.

#include <string>

#include "base/process/process.h"

namespace lockstep::launch {

struct RankEnd {
  base::ExitStatus status;
  bool stopped = false;       // it ended after lockstep had told it to
  std::string last_lines;     // of its output
  std::string error;          // the exception that it left at TORCHELASTIC_ERROR_FILE
  std::string log_folder;     // empty: no log files
  bool is_log_whole = false;  // the log files hold both streams
};

}  // namespace lockstep::launch
